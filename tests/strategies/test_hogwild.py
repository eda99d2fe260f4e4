"""Hogwild! on the virtual clock against a simulation of its events, on processes by what must hold."""

import ctypes
import mmap
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, cast

import pytest
import torch
import torch.nn.functional as F
from oracles import Case, TwoDtypes, Weights, adam, identical, mlp, momentum, serial, weights_of
from replicas import Life, Replica, live
from torch import Tensor, nn

from paceline import engine
from paceline.batches import lone
from paceline.comm import Comm, PeerLostError
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import WorkerFailedError
from paceline.strategies import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.sync.hogwild import Hogwild
from paceline.tasks.base import DataSpec
from paceline.tasks.models.sparse_logistic_regression import SparseLogisticRegression
from paceline.testing.processes import WorkerError

pytestmark = pytest.mark.dist
Lock = Literal["none", "update", "step"]
LOCKS: list[Lock] = ["none", "update", "step"]
FEATURES, NONZEROS, CLASSES = 90, 4, 3
SPEC = DataSpec((2, NONZEROS), torch.float64, (), CLASSES, None, None, features=FEATURES)
every_lock = pytest.mark.parametrize("lock", LOCKS)

# -- sparse training


@dataclass(frozen=True)
class Sparse:
    """`workers` take `steps` batches of 2 samples each, of features of their own (`disjoint`) or of all."""

    workers: int
    steps: int
    disjoint: bool = False
    lr: float = 0.3

    def start(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        model = SparseLogisticRegression(SPEC)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr)

    def batch(self, step: int, worker: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 * step + worker)
        inputs = torch.randn(2, 2, NONZEROS, generator=generator, dtype=torch.float64)
        if self.disjoint:  # interleaved: neighbours in memory belong to different workers
            own = torch.randint(FEATURES // self.workers, (2, NONZEROS), generator=generator)
            inputs[:, 0] = (own * self.workers + worker).double()
        else:
            inputs[:, 0] = torch.randint(FEATURES, (2, NONZEROS), generator=generator).double()
        return Batch(inputs, torch.randint(CLASSES, (2,), generator=generator), 2 * self.workers)


def train_sparse(comm: Comm, job: Sparse, sync: Hogwild, seconds: list[float] | None = None) -> dict[str, Any]:
    model = job.start(seed=comm.rank)
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), job.optimizer(model), comm)
    began: list[float] = []
    for step in range(job.steps):
        batch = job.batch(step, comm.rank)
        sync.begin(batch)
        began.append(comm.now())
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        if seconds is not None:
            comm.elapse(seconds[comm.rank])
        sync.update()
    with comm.ledger.aside():
        sync.finish()
    return {
        "weights": weights_of(model),
        "report": sync.report(),
        "ledger": comm.ledger.snapshot(),
        "began": began,
    }


def serial_sparse(job: Sparse, order: list[tuple[int, int]]) -> Weights:
    """One after another, (step, worker) by (step, worker)."""
    model = job.start()
    optimizer = job.optimizer(model)
    for step, worker in order:
        batch = job.batch(step, worker)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        optimizer.step()
    return weights_of(model)


# -- what it computes


@every_lock
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_one_worker_is_serial_training_bit_for_bit(fabric, lock, optimizer):
    case = Case([[4], [3], [1], [2]], model=mlp, optimizer=optimizer)
    [result] = fabric(1, live, Life(Hogwild(lock), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])
    assert result["ledger"] == {}
    assert result["report"] == {"staleness": {0: 4}, "lost": []}


@every_lock
def test_one_worker_with_sparse_gradients_is_serial_training_bit_for_bit(fabric, lock):
    job = Sparse(workers=1, steps=6)
    [result] = fabric(1, train_sparse, job, Hogwild(lock))
    assert identical(result["weights"], serial_sparse(job, [(step, 0) for step in range(6)]))


@every_lock
@pytest.mark.parametrize("workers", [2, 3])
def test_disjoint_supports_are_serial_training_in_any_order_bit_for_bit(fabric, workers, lock):
    """And no write is lost between workers: neighbours in memory are written by different ones."""
    job = Sparse(workers, steps=15, disjoint=True)
    by_step = [(step, worker) for step in range(job.steps) for worker in range(workers)]
    expected = serial_sparse(job, by_step)
    for order in (sorted(by_step, key=lambda of: of[1]), sorted(by_step, key=lambda of: (-of[1], of[0]))):
        assert identical(serial_sparse(job, order), expected)
    results = fabric(workers, train_sparse, job, Hogwild(lock))
    assert all(identical(result["weights"], expected) for result in results)
    assert sum(sum(result["report"]["staleness"].values()) for result in results) == workers * job.steps


def test_supports_that_meet_are_not_serial_training_in_any_order():
    """So that the test above can fail."""
    job = Sparse(2, steps=15)
    by_step = [(step, worker) for step in range(job.steps) for worker in range(2)]
    assert not identical(serial_sparse(job, by_step), serial_sparse(job, by_step[::-1]))


def ends_of(seconds: list[float], steps: int) -> list[tuple[float, int, int]]:
    """(when, who, step), in order: worker i ends its step k at (k + 1) seconds_i."""
    ends = sorted(((k + 1) * seconds[i], i, k) for i in range(len(seconds)) for k in range(steps))
    assert all(b[0] - a[0] > 1e-3 for a, b in pairwise(ends)), "ties: the order would be up to chance"
    return ends


PACES = [1.0, 1.3, 2.7]


@pytest.mark.parametrize("lock", ["none", "update"])
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_gradients_are_of_the_weights_at_the_beginning_of_a_step_and_land_at_its_end(virtual_workers, lock, optimizer):
    """Each worker with optimizer state of its own; staleness counts what others wrote in between."""
    steps = 6
    case = Case([[3] * len(PACES)] * steps, model=mlp, optimizer=optimizer)
    results = virtual_workers(len(PACES), live, Life(Hogwild(lock), case, seeds=[0, 1, 2], seconds=PACES))

    workers = [Replica(case, 0, i) for i in range(len(PACES))]  # all start as replica 0
    weights = workers[0].vector
    read_at = [0] * len(PACES)
    staleness = [Counter[int]() for _ in PACES]
    for worker in workers:
        worker.gradient(0)
    for version, (_, i, k) in enumerate(ends_of(PACES, steps)):
        workers[i].vector = weights
        workers[i].step()
        weights = workers[i].vector
        staleness[i][version - read_at[i]] += 1
        read_at[i] = version + 1
        assert torch.equal(nn.utils.parameters_to_vector(results[i]["trajectory"][k].values()), weights)
        if k + 1 < steps:
            workers[i].gradient(k + 1)
    for result, counted in zip(results, staleness, strict=True):
        assert torch.equal(nn.utils.parameters_to_vector(result["weights"].values()), weights)
        assert result["report"]["staleness"] == dict(counted)
    assert max(max(counted) for counted in staleness) >= 2


@pytest.mark.parametrize("lock", ["none", "update"])
def test_sparse_gradients_land_in_the_order_of_the_clock_bit_for_bit(virtual_workers, lock):
    job = Sparse(len(PACES), steps=6)
    results = virtual_workers(len(PACES), train_sparse, job, Hogwild(lock), PACES)

    model = job.start()
    [w] = model.parameters()

    def gradient(step: int, worker: int) -> Tensor:
        batch = job.batch(step, worker)
        model.zero_grad()
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        assert w.grad is not None
        return w.grad

    waiting = [gradient(0, worker) for worker in range(len(PACES))]
    for _, i, k in ends_of(PACES, job.steps):
        w.grad = waiting[i]
        job.optimizer(model).step()
        if k + 1 < job.steps:
            waiting[i] = gradient(k + 1, i)
    assert all(identical(result["weights"], weights_of(model)) for result in results)


def test_locked_steps_are_serial_training_in_the_order_of_the_lock_bit_for_bit(fabric):
    """And take as long as one worker alone would."""
    job = Sparse(3, steps=5)
    seconds = [0.002, 0.001, 0.003]
    results = fabric(3, train_sparse, job, Hogwild("step"), seconds)
    turns = sorted((began, step, i) for i, result in enumerate(results) for step, began in enumerate(result["began"]))
    assert identical(results[0]["weights"], serial_sparse(job, [(step, i) for _, step, i in turns]))
    assert all(b[0] - a[0] > 0.999 * seconds[a[2]] for a, b in pairwise(turns)), "nobody begins before another ends"
    assert all(result["report"]["staleness"] == {0: 5} for result in results)


# -- what locks are for


def double(comm: Comm, lock: Lock, steps: int, seconds: float) -> dict[str, Any]:
    """w <- w + what it was when the step began: each update on its own doubles w."""
    w = nn.Parameter(torch.ones(1, dtype=torch.float64))
    sync = Hogwild(lock)
    sync.prepare({"w": w}, torch.optim.SGD([w], lr=1.0), comm)
    for _ in range(steps):
        sync.begin(Batch(torch.empty(1), torch.empty(1), comm.size))
        w.grad = -w.detach().clone()
        comm.elapse(seconds)
        sync.update()
    sync.finish()
    return {"w": w.detach().clone(), "staleness": cast(Any, sync.report())["staleness"]}


def test_under_the_lock_every_step_reads_what_all_before_it_wrote(fabric):
    results = fabric(3, double, "step", 8, 1e-3)
    assert all(result["w"].item() == 2.0**24 and result["staleness"] == {0: 8} for result in results)


def test_a_lock_on_the_writing_alone_is_not_that_nor_is_none(virtual_workers):
    """So that the test above can fail. In step with each other, both read 1: 1 + 1 + 1."""
    for lock in ("update", "none"):
        results = virtual_workers(2, double, lock, 1, 1.0)
        assert [result["w"].item() for result in results] == [3.0, 3.0]
        assert [result["staleness"] for result in results] == [{0: 1}, {1: 1}]


def count_up(comm: Comm, lock: Lock, steps: int, sparse: bool, apart: bool) -> dict[str, Tensor]:
    """Adds 1 `steps` times, to the same row as the others or to one of its own (`apart`)."""
    w = nn.Parameter(torch.zeros(8, 2, dtype=torch.float64))
    sync = Hogwild(lock)
    sync.prepare({"w": w}, torch.optim.SGD([w], lr=1.0), comm)
    row = torch.tensor([[comm.rank if apart else 3]])
    ones = -torch.sparse_coo_tensor(row, torch.ones(1, 2, dtype=torch.float64), (8, 2), check_invariants=True)
    batch = Batch(torch.empty(1), torch.empty(1), comm.size)
    comm.barrier()
    for _ in range(steps):
        sync.begin(batch)
        w.grad = ones if sparse else ones.to_dense()
        sync.update()
    sync.finish()
    return {"w": w.detach().clone()}


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("lock", ["update", "step"])
def test_under_a_lock_no_update_of_the_same_weight_is_lost(workers, lock, sparse):
    steps = 2000
    for result in workers(2, count_up, lock, steps, sparse, False):
        assert result["w"][3].tolist() == [2.0 * steps] * 2
        assert result["w"].sum() == 4 * steps


class SlowWriter(torch.optim.SGD):
    """Adds 1 to what it read a while ago, as a processor does to a weight, and lets others in between if it can."""

    def __init__(self, w: nn.Parameter, comm: Comm) -> None:
        super().__init__([w], lr=1.0)
        self._w, self._comm = w, comm

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        read = self._w.clone()
        self._comm.elapse(1e-3)
        self._w.copy_(read + 1)


def write_slowly(comm: Comm, lock: Lock) -> float:
    w = nn.Parameter(torch.zeros(1))
    sync = Hogwild(lock)
    sync.prepare({"w": w}, SlowWriter(w, comm), comm)
    for _ in range(6):
        sync.begin(Batch(torch.empty(1), torch.empty(1), comm.size))
        w.grad = torch.ones(1)
        sync.update()
    sync.finish()
    return w.item()


@pytest.mark.parametrize("lock", ["update", "step"])
def test_under_a_lock_one_worker_at_a_time_writes(fabric, lock):
    assert fabric(3, write_slowly, lock) == [18.0] * 3


def test_without_a_lock_workers_that_write_to_a_weight_at_once_lose_updates(virtual_workers):
    """So that the test above can fail; and it is what Hogwild! takes into account."""
    assert virtual_workers(3, write_slowly, "none") == [6.0] * 3


def test_without_a_lock_no_update_of_a_weight_of_ones_own_is_lost(workers):
    """Were rows outside the support written too, with what had been read there, others' updates would be."""
    steps = 4000
    for result in workers(3, count_up, "none", steps, True, True):
        assert result["w"].sum(1).tolist() == [2.0 * steps] * 3 + [0.0] * 5


# -- the support


PAGE = mmap.PAGESIZE
ROWS = 16 * PAGE // 8  # of 2 float32: 16 pages


def write_in_one_page(comm: Comm, sparse: bool) -> dict[str, Tensor]:
    """Train on features of the fourth page alone, with all others read-only: to write there is to die."""
    spec = DataSpec((2, 3), torch.float64, (), 2, None, None, features=ROWS)
    model = SparseLogisticRegression(spec, sparse_gradients=sparse)
    [w] = model.parameters()
    sync = Hogwild()
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    assert w.data_ptr() % PAGE == 0 and w.nbytes == 16 * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    for page in set(range(16)) - {3}:
        assert libc.mprotect(ctypes.c_void_p(w.data_ptr() + page * PAGE), PAGE, mmap.PROT_READ) == 0
    first = 3 * PAGE // 8
    inputs = torch.tensor([[[first, first + 7, first + 7], [1.0, 2, 0]], [[first + 511, first, first], [1.0, 0, 0]]])
    batch = Batch(inputs.double(), torch.tensor([0, 1]), 2)
    for _ in range(3):
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sync.update()
    return {"written": w.detach().abs().sum(1).nonzero().flatten() - first}


def test_nothing_outside_the_support_is_written_to(workers):
    [result] = workers(1, write_in_one_page, True)
    assert result["written"].tolist() == [0, 7, 511]


def test_a_dense_gradient_writes_everywhere(workers):
    """So that the test above can fail."""
    with pytest.raises(WorkerError, match="died without a word"):
        workers(1, write_in_one_page, False)


@dataclass(frozen=True)
class Refused:
    """An optimizer that is not to be used with sparse gradients."""

    name: str
    knobs: dict[str, Any] = field(default_factory=dict)


REFUSED = [
    Refused("SGD", {"momentum": 0.9}),
    Refused("SGD", {"weight_decay": 0.1}),
    Refused("SGD", {"maximize": True}),
    Refused("Adam"),
    Refused("Adagrad"),
    Refused("SparseAdam"),
]


def refuse(comm: Comm, optimizer: Refused) -> None:
    job = Sparse(1, 1)
    model, batch = job.start(), job.batch(0, 0)
    before = weights_of(model)
    made = getattr(torch.optim, optimizer.name)(model.parameters(), lr=0.1, **optimizer.knobs)
    sync = Hogwild()
    sync.prepare(dict(model.named_parameters()), made, comm)
    sync.begin(batch)
    F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
    with pytest.raises(ConfigError, match=r"plain SGD.*optimizer.momentum=0.*model.sparse_gradients=false") as caught:
        sync.update()
    assert caught.value.exit_code == 2
    assert identical(weights_of(model), before)


@pytest.mark.parametrize("optimizer", REFUSED, ids=lambda it: " ".join([it.name, *it.knobs]))
def test_an_optimizer_that_moves_weights_outside_a_sparse_support_is_refused(virtual_workers, optimizer):
    virtual_workers(1, refuse, optimizer)


class Both(nn.Module):
    """Sparse and dense parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.dense = nn.EmbeddingBag(20, 4, mode="sum", sparse=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.sparse(x))


def train_both(comm: Comm | None) -> Weights:
    """With momentum for the dense ones alone; without `comm` in plain torch."""
    torch.manual_seed(0)
    model = Both()
    groups = [{"params": model.sparse.parameters()}, {"params": model.dense.parameters(), "momentum": 0.9}]
    optimizer = torch.optim.SGD(groups, lr=0.2)
    sync = Hogwild()
    if comm is not None:
        sync.prepare(dict(model.named_parameters()), optimizer, comm)
    for step in range(5):
        batch = Batch(torch.tensor([[step, 3 * step], [7, step]]), torch.tensor([0, 2]), 2)
        optimizer.zero_grad() if comm is None else sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        optimizer.step() if comm is None else sync.update()
    return weights_of(model)


def test_a_model_with_sparse_and_dense_gradients_is_trained_as_serially(virtual_workers):
    [trained] = virtual_workers(1, train_both)
    assert identical(trained, train_both(None))


# -- shared memory


def look_at_each_other(comm: Comm) -> dict[str, Any]:
    torch.manual_seed(comm.rank)
    model, sync = mlp(), Hogwild()
    own = weights_of(model)
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    start = weights_of(model)
    seen = sync.consensus()
    comm.barrier()
    if comm.rank == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
    comm.barrier()
    sent = comm.ledger.snapshot()
    return {"own": own, "start": start, "before": seen, "after": sync.consensus(), "sent": sent}


def test_all_start_from_replica_0_and_have_the_same_memory(fabric):
    zero, one, two = fabric(3, look_at_each_other)
    assert not identical(zero["own"], one["own"])
    for result in (zero, one, two):
        assert identical(result["start"], zero["own"])
        assert all(bool((tensor == 7.0).all()) for tensor in result["after"].values())


def test_the_consensus_is_a_copy_and_costs_no_message(fabric):
    for result in fabric(2, look_at_each_other):
        assert identical(result["before"], result["start"])  # not what was written later
        assert result["sent"] == {}


def test_training_sends_nothing_as_is_stated(fabric):
    results = fabric(2, train_sparse, Sparse(2, 5), Hogwild())
    assert [result["ledger"] for result in results] == [{}, {}]
    cost = Hogwild().cost(list(mlp().parameters()), World(2, 10))
    assert (cost.worker, cost.server, cost.buffers) == ({}, {}, 0)


def test_batches_without_samples_are_no_updates_and_hold_no_lock(virtual_workers):
    sizes = [[2, 0], [0, 2], [0, 0], [1, 1]]
    for lock in LOCKS:
        results = virtual_workers(2, live, Life(Hogwild(lock), Case(sizes, model=mlp), seconds=[1.0, 1.1]))
        assert [sum(result["report"]["staleness"].values()) for result in results] == [2, 2]


# -- the end, and deaths


def end_apart(comm: Comm, dies: int | None, while_it_holds_the_lock: bool) -> dict[str, Any]:
    """The later a worker's number the later it ends; `dies`: a worker that does so instead of its only update."""
    w = nn.Parameter(torch.zeros(comm.size))
    sync = Hogwild("step" if while_it_holds_the_lock else "none")
    sync.prepare({"w": w}, torch.optim.SGD([w], lr=1.0), comm)
    comm.barrier()
    if comm.rank != dies:
        comm.elapse(0.1 * comm.rank)
    sync.begin(Batch(torch.empty(1), torch.empty(1), comm.size))
    if comm.rank == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    w.grad = torch.zeros(comm.size)
    w.grad[comm.rank] = -1.0
    sync.update()
    sync.finish()
    return {"w": w.detach().clone(), "lost": cast(Any, sync.report())["lost"], "consensus": sync.consensus()["w"]}


def test_nobody_finishes_before_all_are_done(fabric):
    for result in fabric(3, end_apart, None, False):
        assert result["w"].tolist() == result["consensus"].tolist() == [1.0] * 3
        assert result["lost"] == []


@pytest.mark.fault
@pytest.mark.parametrize("while_it_holds_the_lock", [False, True])
@pytest.mark.parametrize("dies", [1, 2])
def test_the_others_go_on_without_a_worker_that_dies(workers, dies, while_it_holds_the_lock):
    results = workers(3, end_apart, dies, while_it_holds_the_lock, lost=[dies])
    expected = [float(rank != dies) for rank in range(3)]
    for result in results[:dies] + results[dies + 1 :]:
        assert result["w"].tolist() == result["consensus"].tolist() == expected
    assert results[0]["lost"] == [dies]


def end_without_replica_0(comm: Comm) -> None:
    if comm.rank == 0:
        end_apart(comm, 0, False)
    with pytest.raises(PeerLostError) as caught:
        end_apart(comm, 0, False)
    assert caught.value.rank == 0


@pytest.mark.fault
def test_without_replica_0_the_run_is_lost(workers):
    workers(2, end_without_replica_0, lost=[0])


# -- what is refused


def prepare_elsewhere(comm: Comm, lock: Lock) -> None:
    """As if worker 1 ran on another host."""
    comm._worker.hosts[1] = "elsewhere"  # pyright: ignore[reportAttributeAccessIssue]
    model = mlp()
    with pytest.raises(ConfigError, match=r"sync: .*several hosts.*sync=asp") as caught:
        Hogwild(lock).prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("lock", ["none", "step"])
def test_workers_on_several_hosts_are_refused(workers, lock):
    workers(2, prepare_elsewhere, lock)


def test_virtual_workers_on_several_hosts_are_refused(tmp_path):
    hosts = ["hardware=virtual", "hardware.workers=4", "hardware.workers_per_host=2", "tracking=none"]
    with pytest.raises(WorkerFailedError, match=r"several hosts.*sync=asp") as caught:
        engine.run(["sync=hogwild", *hosts], root=tmp_path, quiet=True)
    assert caught.value.exit_code == 2


def prepare_odd(comm: Comm) -> None:
    model = mlp().to("meta")
    with pytest.raises(ConfigError, match=r"hardware.device=cpu") as caught:
        Hogwild().prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    assert caught.value.exit_code == 2
    mixed = TwoDtypes()
    with pytest.raises(ConfigError, match="one dtype"):
        Hogwild().prepare(dict(mixed.named_parameters()), momentum(mixed.parameters()), comm)


def test_weights_that_are_not_in_the_hosts_memory_or_of_several_dtypes_are_refused(virtual_workers):
    virtual_workers(1, prepare_odd)
    with pytest.raises(ConfigError, match=r"one dtype.*sync=bsp"):
        Hogwild().cost(list(TwoDtypes().parameters()), World(2))


# -- whole runs

SETTINGS = ("tracking=none", "hardware.device=cpu", "hardware.threads=1")


@pytest.fixture(scope="module")
def serial_accuracy(tmp_path_factory):
    settings = ["strategy=single", "batch_size=64", *SETTINGS]
    result = engine.run(settings, root=tmp_path_factory.mktemp("runs"), quiet=True)
    assert result is not None and result.accuracy is not None
    return result.accuracy


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["hogwild", "hogwild_locked"])
def test_digits_are_learnt_as_well_as_serially(fork_server, tmp_path, serial_accuracy, choice):
    settings = [f"sync={choice}", "optimizer.lr=0.01", "hardware.workers=2", *SETTINGS]
    result = engine.run(settings, root=tmp_path, quiet=True)
    assert result is not None and result.accuracy is not None
    assert result.accuracy > serial_accuracy - 0.02
    assert result.summary["wire"]["total"] == 0


SPARSE = ["model=sparse_logistic_regression", "data=sparse", "data.samples=2000", "data.features=20000", "batch_size=1"]


@pytest.mark.slow
def test_sparse_data_are_learnt_by_two_workers(fork_server, tmp_path):
    plain = ["epochs=1", "optimizer.lr=0.05", "optimizer.momentum=0"]
    result = engine.run(["sync=hogwild", *SPARSE, *plain, "hardware.workers=2", *SETTINGS], root=tmp_path, quiet=True)
    assert result is not None and result.accuracy is not None
    assert result.accuracy > 0.88
    staleness = result.summary["staleness"]
    assert sum(staleness["histogram"].values()) == 2000


def test_momentum_with_sparse_gradients_ends_a_run_as_bad_configuration(fork_server, tmp_path):
    with pytest.raises(Exception, match=r"optimizer.momentum=0") as caught:
        engine.run(["sync=hogwild", *SPARSE, "hardware.workers=2", *SETTINGS], root=tmp_path, quiet=True)
    assert getattr(caught.value, "exit_code", None) == 2
