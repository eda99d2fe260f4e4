"""Downpour against its pseudocode, simulated in plain torch, its staleness, and servers without a lock."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Case, Weights, adam, identical, mlp, momentum, replica_batch, weights_of
from served import Paced, pace, random_seconds, run
from torch import Tensor, nn

from paceline.batches import lone
from paceline.comm import Comm
from paceline.exchange.pushing import HEADER
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.sync.downpour import Downpour

pytestmark = pytest.mark.dist


class Server:
    """The server's copy: applies each push at once."""

    def __init__(self, case: Case) -> None:
        self.model = case.start()
        self._optimizer = case.optimizer(self.model.parameters())
        self.version = 0

    def push(self, accrued: Weights, share: float = 1.0) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = accrued[name].clone()
        [group] = self._optimizer.param_groups
        rate = group["lr"]
        group["lr"] = share * rate
        self._optimizer.step()
        group["lr"] = rate
        self.version += 1


def gradient(model: nn.Module, case: Case, step: int, replica: int = 0) -> Weights:
    batch = replica_batch(case, step, replica)
    model.zero_grad()
    F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def downpour(case: Case, n_push: int, n_fetch: int) -> tuple[Server, Counter[int]]:
    """One worker: fetch if n_fetch divides t; a += g; step w if no fetch follows; push a if n_push divides t + 1."""
    server, local = Server(case), case.start()
    optimizer = case.optimizer(local.parameters())
    accrued = {name: torch.zeros_like(p) for name, p in local.named_parameters()}
    staleness: Counter[int] = Counter()
    fetched = 0

    def push() -> None:
        staleness[server.version - fetched] += 1
        server.push(accrued)
        for value in accrued.values():
            value.zero_()

    for t in range(len(case.sizes)):
        if t % n_fetch == 0:
            local.load_state_dict(server.model.state_dict())
            fetched = server.version
        for name, g in gradient(local, case, t).items():
            accrued[name] += g
        if (t + 1) % n_fetch != 0:
            optimizer.step()
        if (t + 1) % n_push == 0:
            push()
    if len(case.sizes) % n_push != 0:  # what is left goes out at the end
        push()
    return server, staleness


# -- one worker


@pytest.mark.parametrize(
    ("push", "fetch", "optimizer"),
    [
        (1, 2, momentum),
        (2, 1, adam),
        (2, 2, momentum),
        (2, 3, adam),
        (3, 2, momentum),
        (4, 1, adam),
        (1, 9, adam),
        (9, 1, momentum),
    ],
)
def test_one_worker_follows_downpours_pseudocode_bit_for_bit(fabric, push, fetch, optimizer):
    case = Case([[4]] * 8, model=mlp, optimizer=optimizer)
    expected, staleness = downpour(case, push, fetch)
    [worker], [server] = run(fabric, Downpour(push, fetch), case)
    assert identical(server["weights"], weights_of(expected.model))
    assert identical(worker["weights"], server["weights"])
    assert server["report"]["staleness"] == dict(staleness)


@pytest.mark.parametrize(("servers", "lock"), [(2, True), (5, True), (3, False)])
def test_downpour_is_the_same_over_several_servers(virtual_workers, servers, lock):
    """Bit for bit: what an optimizer does to a parameter is its own affair."""
    case = Case([[4]] * 8, model=mlp, optimizer=adam)
    expected, _ = downpour(case, 2, 3)
    [worker], _ = run(virtual_workers, Downpour(2, 3, servers=servers, lock=lock), case)
    assert identical(worker["weights"], weights_of(expected.model))


def test_pushing_and_fetching_less_often_changes_what_is_trained():
    case = Case([[4]] * 8, model=mlp)
    outcomes = [weights_of(downpour(case, p, f)[0].model) for p, f in [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3)]]
    assert not any(identical(a, b) for i, a in enumerate(outcomes) for b in outcomes[:i])


# -- several workers


@pytest.mark.parametrize(("replicas", "push", "steps", "servers"), [(2, 1, 6, 1), (3, 1, 5, 2), (3, 2, 5, 1)])
def test_the_version_is_the_number_of_pushes(fabric, replicas, push, steps, servers):
    """Every push is applied once by each server, and has a staleness."""
    trained, told = run(fabric, Downpour(push, servers=servers), Case([[2] * replicas] * steps, model=mlp))
    for server in told:
        histogram = server["report"]["staleness"]
        assert sum(histogram.values()) == replicas * -(-steps // push)
        assert all(staleness >= 0 for staleness in histogram)
    assert all(identical(worker["weights"], trained[0]["weights"]) for worker in trained)


@pytest.mark.parametrize("servers", [1, 2])
def test_no_push_is_lost_or_doubled_however_workers_interleave(fabric, servers):
    steps = 20
    results = fabric(4 + servers, pace, Paced(Downpour(rate="full", servers=servers), [[0.0] * steps] * 4))
    for worker in results[:4]:
        assert torch.equal(worker["final"], torch.ones(2, 4, steps, dtype=torch.float64))


@pytest.mark.slow
def test_pushes_of_a_megabyte_by_all_workers_to_all_servers_do_not_block_each_other(workers):
    assert [float(weight) for weight in workers(5, big_pushes)[:3]] == [-9.0] * 3


def big_pushes(comm: Comm) -> Tensor | None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(300_000)) for _ in range(2)])
    sync = Downpour(rate="full", servers=2)
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if comm.rank >= 3:
        sync.serve()
        return None
    for _ in range(3):
        sync.begin(Batch(torch.empty(1), torch.empty(1), 3))
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        sync.update()
    sync.finish()
    assert torch.equal(model[0], model[1])
    return model[0][0].detach()


def take_turns(comm, case, rate):
    """Workers in turn: only the holder of the token pushes, and fetches for its next step."""
    replicas = comm.size - 1
    of_workers = comm.split(0 if comm.rank < replicas else None)
    model = case.start()
    sync = Downpour(rate=rate)
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if of_workers is None:
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report()}
    steps = len(case.sizes)
    token = torch.zeros(1)
    following, before = (comm.rank + 1) % replicas, (comm.rank - 1) % replicas
    sync.begin(replica_batch(case, 0, comm.rank))
    of_workers.barrier()  # all hold version 0
    for step in range(steps):
        batch = replica_batch(case, step, comm.rank)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        if (comm.rank, step) != (0, 0):
            of_workers.recv(token, before)
        sync.update()
        # fetches: the server has applied our push once it answers
        sync.begin(replica_batch(case, min(step + 1, steps - 1), comm.rank))
        if (comm.rank, step) != (replicas - 1, steps - 1):
            of_workers.send(token, following)
    sync.finish()
    return {"weights": weights_of(model)}


@pytest.mark.parametrize("rate", ["share", "full"])
@pytest.mark.parametrize(("replicas", "optimizer"), [(2, adam), (3, momentum), (4, momentum)])
def test_equal_workers_in_turn_train_on_gradients_one_less_than_their_number_old(fabric, replicas, optimizer, rate):
    """Staleness P - 1 but for the first round, and the server's weights are those of the delayed recursion."""
    steps, sizes = 4, [3, 1, 4, 2][:replicas]
    case = Case([sizes] * steps, model=mlp, optimizer=optimizer)
    *_, server = fabric(replicas + 1, take_turns, case, rate)
    expected = Counter(range(replicas)) + Counter({replicas - 1: replicas * (steps - 1)})
    assert server["report"] == {"staleness": dict(expected), "lost": []}

    simulated, copy = Server(case), case.start()
    fetched = [weights_of(copy) for _ in range(replicas)]
    for step in range(steps):
        for worker in range(replicas):
            copy.load_state_dict(fetched[worker])
            share = sizes[worker] / sum(sizes) if rate == "share" else 1.0
            simulated.push(gradient(copy, case, step, worker), share)
            fetched[worker] = weights_of(simulated.model)
    assert identical(server["weights"], weights_of(simulated.model))


def test_an_asynchronous_batch_without_samples_neither_fetches_nor_pushes(virtual_workers):
    empty = frozenset({(0, 1), (0, 2), (1, 3)})
    zero, one, server = virtual_workers(3, pace, Paced(Downpour(rate="full"), [[1.0] * 4, [1.5] * 4], empty=empty))
    each = 2 * 2 * 4 * 8 + 2 * HEADER  # [2 workers, 4 steps] float64, twice
    assert (zero["ledger"], one["ledger"]) == ({"send": 2 * each}, {"send": 3 * each})
    assert sum(server["report"]["staleness"].values()) == 5
    assert torch.equal(zero["reads"][2], zero["reads"][0])
    expected = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 0]], dtype=torch.float64)
    assert torch.equal(zero["final"], expected.expand(2, 2, 4))


# -- without the lock


def test_servers_without_a_lock_serve_the_same_weights(virtual_workers):
    """On the virtual clock no two write at once, so that no update is lost; each has the staleness of its clients."""
    seconds = random_seconds(5, 6, 1.0)
    *trained, _, _ = results = virtual_workers(7, pace, Paced(Downpour(rate="full", servers=2, lock=False), seconds))
    for worker in trained:
        assert torch.equal(worker["final"], torch.ones(2, 5, 6, dtype=torch.float64))
    assert [sum(server["report"]["staleness"].values()) for server in results[5:]] == [18, 12]
    reads = trained[0]["reads"][-1][0]
    assert reads[1::2].sum() > 0  # what went through the other server


def test_what_servers_without_a_lock_lose_to_each_other_is_all_that_is_lost(workers):
    steps = 30
    results = workers(4, pace, Paced(Downpour(rate="full", servers=2, lock=False), [[0.0] * steps] * 2))
    final = results[0]["final"]
    assert bool((final <= 1).all()) and bool((final >= 0).all())
    assert float(final.sum()) > 2 * steps  # of 4 steps: most of it is there
    assert torch.equal(results[1]["final"], final)


@dataclass(frozen=True)
class Resumed:
    """Two workers and two servers without a lock go on from `state`; the first server is late with loading it."""

    state: bytes
    sync: Downpour = field(default_factory=lambda: Downpour(servers=2, lock=False))


def go_on(comm: Comm, job: Resumed) -> dict[str, Any]:
    model, sync = mlp(), job.sync
    sync.prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    if comm.rank == 2:
        comm.elapse(1.0)
    sync.load_state_dict(from_bytes(job.state))
    if comm.rank >= 2:
        sync.serve()
        return {}
    sync.begin(Batch(torch.empty(1), torch.empty(1), 2))
    fetched = weights_of(model)
    sync.finish()
    comm.elapse(1.0)
    rest = comm.try_recv_any(torch.empty(sum(parameter.numel() for parameter in model.parameters())))
    return {"fetched": fetched, "rest": rest}


def test_servers_without_a_lock_serve_none_but_the_saved_weights_and_each_worker_by_one(virtual_workers):
    trained, _ = run(virtual_workers, Downpour(servers=2, lock=False), Case([[2, 2]] * 3, model=mlp))
    state = trained[0]["state"]
    saved = state["servers"][0]["weights"]
    for worker in virtual_workers(4, go_on, Resumed(to_bytes(state)))[:2]:
        assert torch.equal(torch.cat([w.flatten() for w in worker["fetched"].values()]), saved)
        assert worker["rest"] is None, "nobody is sent the last weights twice"


# -- what it looks at, and keeps


def peek(comm, case):
    model = case.start()
    sync = Downpour(push=2, fetch=3)
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if comm.rank == 1:
        sync.serve()
        return None
    messages = []
    for step in range(len(case.sizes)):
        batch = replica_batch(case, step, 0)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sync.update()
        before = comm.ledger.messages.total()
        assert identical(sync.consensus(), weights_of(model))
        messages.append(comm.ledger.messages.total() - before)
    sync.finish()
    return messages


def test_the_consensus_is_replica_0s_own_copy_and_asks_nobody(fabric):
    assert fabric(2, peek, Case([[4]] * 6, model=mlp))[0] == [0] * 6


def test_what_was_accrued_when_it_was_saved_is_pushed_at_the_end_if_no_step_follows(virtual_workers):
    case, sync = Case([[4]] * 3, model=mlp), Downpour(4)
    trained, _ = run(virtual_workers, sync, case)
    state = to_bytes({"weights": trained[0]["trajectory"][-1], "sync": trained[0]["state"]})
    resumed, _ = run(virtual_workers, sync, case, [state], start=3)
    assert identical(resumed[0]["weights"], trained[0]["weights"])
    assert not identical(resumed[0]["weights"], trained[0]["trajectory"][-1])
