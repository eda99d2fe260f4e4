"""EASGD against its recursion, simulated in plain torch: springs between the old W_i and the old centre."""

import os
import signal
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import (
    ROUNDING,
    Case,
    Plan,
    TwoDtypes,
    adam,
    distance,
    identical,
    mlp,
    momentum,
    replica_batch,
    train,
    weights_of,
    workers_of,
)
from replicas import Life, Replica, copy, flat, live, saved_after, stacked
from torch import Tensor

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.strategies import Sync
from paceline.strategies.core.cost import World
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.easgd import EASGD
from paceline.strategies.sync.easgd_async import REQUEST, AsyncEASGD
from paceline.strategies.sync.easgd_round_robin import RoundRobinEASGD

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3]  # replicas start apart: replica 0's start counts
VARIANTS = {"synchronous": EASGD, "round_robin": RoundRobinEASGD, "asynchronous": AsyncEASGD}
TOGETHER = ["synchronous", "round_robin"]
FLOAT = 4  # bytes
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01)


def heavy(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# -- the oracle


@dataclass(frozen=True)
class Knobs:
    variant: str = "synchronous"
    rho: float | None = 2.0
    period: int = 1

    def sync(self, nesterov: bool = False) -> Sync:
        return VARIANTS[self.variant](self.rho, self.period, nesterov)


class ElasticForce:
    """All replicas and the centre in one place; asynchronous ones exchange one after another, by rank."""

    def __init__(self, case: Case, knobs: Knobs, pulls_by: str = "the old weights") -> None:
        self.knobs, self.pulls_by = knobs, pulls_by
        self.replicas = [Replica(case, 0, rank) for rank in range(len(case.sizes[0]))]
        self.centre = self.replicas[0].vector

    def alpha(self) -> float:
        lr = self.replicas[0]._optimizer.param_groups[0]["lr"]
        return 0.9 / len(self.replicas) if self.knobs.rho is None else lr * self.knobs.rho

    def pulled(self, t: int) -> list[int]:
        """Whose springs pull in step t."""
        if (t + 1) % self.knobs.period != 0:
            return []
        everyone = range(len(self.replicas))
        exchange = (t + 1) // self.knobs.period - 1
        return [exchange % len(everyone)] if self.knobs.variant == "round_robin" else list(everyone)

    def step(self, t: int) -> None:
        old_centre = self.centre.clone()
        for rank, replica in enumerate(self.replicas):
            replica.gradient(t)
            if self.knobs.variant == "asynchronous":
                old_centre = self.centre.clone()
            self.move(replica, old_centre, rank in self.pulled(t))

    def move(self, replica: Replica, old_centre: Tensor, pulls: bool) -> None:
        old = replica.vector
        replica.step()
        if pulls:
            start = old if self.pulls_by == "the old weights" else replica.vector
            force = self.alpha() * (start - old_centre)
            replica.vector = replica.vector - force
            self.centre += force

    def run(self, steps: int) -> tuple[Tensor, Tensor]:
        """[steps, replicas, entries] and [steps, entries]: the weights and the centre after each step."""
        rows, centres = [], []
        for t in range(steps):
            self.step(t)
            rows.append(self.weights())
            centres.append(self.centre.clone())
        return torch.stack(rows), torch.stack(centres)

    def weights(self) -> Tensor:
        return torch.stack([replica.vector for replica in self.replicas])


class MomentumElasticForce(ElasticForce):
    """EAMSGD as the paper has it: v <- delta v - eta g(x + delta v), x <- x + v - alpha (x - centre)."""

    ETA, DELTA = 0.1, 0.9

    def __init__(self, case: Case, knobs: Knobs) -> None:
        super().__init__(case, knobs)
        self.x = [replica.vector for replica in self.replicas]
        self.v = [torch.zeros_like(x) for x in self.x]

    def step(self, t: int) -> None:
        old_centre = self.centre.clone()
        for i, replica in enumerate(self.replicas):
            replica.vector = self.x[i] + self.DELTA * self.v[i]
            replica.gradient(t)
            g = torch.cat([p.grad.flatten() for p in replica.model.parameters() if p.grad is not None])
            if self.knobs.variant == "asynchronous":
                old_centre = self.centre.clone()
            force = self.alpha() * (self.x[i] - old_centre) if i in self.pulled(t) else torch.zeros_like(g)
            self.v[i] = self.DELTA * self.v[i] - self.ETA * g
            self.x[i] = self.x[i] + self.v[i] - force
            self.centre += force

    def weights(self) -> Tensor:
        return torch.stack([x + self.DELTA * v for x, v in zip(self.x, self.v, strict=True)])


# -- the real thing


@dataclass(frozen=True)
class Turns:
    """Replicas that take their steps one after another, by rank."""

    sync: Sync
    case: Case
    saved: bytes | None = None  # {"weights", "sync"} of replica 0 to go on from
    start: int = 0


def take_turns(comm, job: Turns) -> dict[str, Any]:
    sync, case, replicas = job.sync, job.case, comm.size - 1
    with comm.ledger.aside():
        of_workers = comm.split(0 if comm.rank < replicas else None)
        model = case.start(comm.rank)
        saved = from_bytes(job.saved) if job.saved is not None else None
        if saved is not None:
            model.load_state_dict(saved["weights"])
        sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
        if saved is not None:
            sync.load_state_dict(saved["sync"])
    begins = weights_of(model)
    if of_workers is None:
        assert isinstance(sync, AsyncEASGD)
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report(), "ledger": comm.ledger.snapshot()}
    token = torch.zeros(1)
    trajectory, seen, kept = [], [], []
    for step in range(job.start, len(case.sizes)):
        batch = replica_batch(case, step, comm.rank)
        sync.begin(batch)
        if batch.size > 0:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        with comm.ledger.aside():
            if replicas > 1 and (comm.rank, step) != (0, job.start):
                of_workers.recv(token, (comm.rank - 1) % replicas)
        sync.update()
        trajectory.append(weights_of(model))
        seen.append(copy(sync.consensus()))
        kept.append(copy(sync.state_dict()))
        with comm.ledger.aside():
            if replicas > 1 and (comm.rank, step) != (replicas - 1, len(case.sizes) - 1):
                of_workers.send(token, (comm.rank + 1) % replicas)
    with comm.ledger.aside():
        sync.finish()
    return {
        "begins": begins,
        "trajectory": trajectory,
        "seen": seen,
        "states": kept,
        "weights": weights_of(model),
        "result": copy(sync.consensus()),
        "ledger": comm.ledger.snapshot(),
        "buffers": sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers()),
    }


def after(results: list[dict[str, Any]]) -> Tensor:
    """[steps, replicas, entries]"""
    return torch.stack([stacked(results, step) for step in range(len(results[0]["trajectory"]))])


def centres(result: dict[str, Any]) -> Tensor:
    """[steps, entries]: what a replica said was the consensus after each step."""
    return torch.stack([flat(seen) for seen in result["seen"]])


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=ROUNDING)


UNEVEN = [[4, 4, 4], [3, 3, 2], [4, 4, 4], [1, 0, 0], [4, 4, 4], [2, 1, 1], [4, 4, 4]]
EVEN = [[4, 4, 4], [3, 3, 3]] * 3
RULES = {
    "each step": (Knobs(period=1), sgd),
    "momentum": (Knobs(period=2), momentum),
    "the paper's rate": (Knobs(rho=None, period=2), momentum),
    "adam": (Knobs(rho=20.0, period=3), adam),
}
each_rule = pytest.mark.parametrize(("knobs", "optimizer"), RULES.values(), ids=list(RULES))
together = pytest.mark.parametrize("variant", TOGETHER)


# -- what it computes


@each_rule
@together
def test_replicas_and_centre_follow_the_recursion(fabric, variant, knobs, optimizer):
    knobs, case = replace(knobs, variant=variant), Case(UNEVEN, optimizer=optimizer)
    results = fabric(3, live, Life(knobs.sync(), case, seeds=APART, looks=True))
    rows, centre = ElasticForce(case, knobs).run(len(UNEVEN))
    assert close(after(results), rows)
    for result in results:
        assert close(centres(result), centre)
        assert close(flat(result["weights"]), centre[-1])
        assert identical(result["result"], result["weights"])
        assert identical(result["weights"], results[0]["weights"])


@each_rule
@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_that_exchange_in_turn_follow_the_asynchronous_recursion(fabric, replicas, knobs, optimizer):
    knobs = replace(knobs, variant="asynchronous")
    case = Case([sizes[:replicas] for sizes in UNEVEN], optimizer=optimizer)
    *trained, server = fabric(replicas + 1, take_turns, Turns(knobs.sync(), case))
    rows, centre = ElasticForce(case, knobs).run(len(UNEVEN))
    assert close(after(trained), rows)
    for result in (*trained, server):
        assert close(flat(result["weights"]), centre[-1])
        assert identical(result["weights"], server["weights"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_momentum_follows_the_papers_recursion(fabric, variant):
    knobs, case = Knobs(variant, rho=3.0, period=2), Case(EVEN, optimizer=heavy)
    if variant == "asynchronous":
        results = fabric(4, take_turns, Turns(knobs.sync(nesterov=True), case))[:3]
    else:
        results = fabric(3, live, Life(knobs.sync(nesterov=True), case, looks=True))
    rows, centre = MomentumElasticForce(case, knobs).run(len(EVEN))
    assert close(after(results), rows)
    assert close(flat(results[0]["weights"]), centre[-1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_spring_is_taken_from_the_old_weights_and_rules_differ(variant):
    """The tests above can tell them apart: the spring after the step, another variant, no spring, another momentum."""
    case, knobs = Case(EVEN, optimizer=heavy), Knobs(variant, period=2)
    right = ElasticForce(case, knobs).run(6)[1][-1]
    wrong = [
        ElasticForce(case, knobs, pulls_by="the new weights"),
        *(ElasticForce(case, replace(knobs, variant=other)) for other in VARIANTS if other != variant),
        ElasticForce(case, replace(knobs, period=1)),
        ElasticForce(case, replace(knobs, rho=None)),
        MomentumElasticForce(case, knobs),
    ]
    assert all((right - elastic.run(6)[1][-1]).abs().max() > 1e6 * ROUNDING for elastic in wrong)


@together
def test_in_the_round_robin_one_replica_moves_at_a_time_and_together_all_do(fabric, variant):
    """Without gradients who exchanges moves, and nobody else."""
    results = fabric(3, only_elastic, Knobs(variant, rho=2.0), 7)
    rows = torch.stack([result["trajectory"] for result in results])  # [replicas, steps + 1, entries]
    moved = (rows[:, 1:] != rows[:, :-1]).any(-1)
    expected = torch.ones(3, 7, dtype=torch.bool)
    if variant == "round_robin":
        expected = torch.arange(3)[:, None] == torch.arange(7)[None, :] % 3
    assert torch.equal(moved, expected)


# -- without gradients


def only_elastic(comm, knobs: Knobs, steps: int, rest: list[float] | None = None) -> dict[str, Any]:
    """Replicas are moved apart, and have zero gradients: nothing but the springs acts."""
    sync = knobs.sync()
    case = Case([[1] * comm.size] * steps)
    model = case.start()
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)
    if sync.servers and comm.rank == comm.size - 1:
        start = flat(weights_of(model))
        assert isinstance(sync, AsyncEASGD)
        sync.serve()
        return {"trajectory": torch.stack([start, flat(weights_of(model))]), "report": sync.report()}
    with torch.no_grad():
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(comm.rank)
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    trajectory, centre = [flat(weights_of(model))], []
    for step in range(steps):
        sync.begin(replica_batch(case, step, comm.rank))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if rest is not None:
            comm.elapse(rest[comm.rank])
        sync.update()
        trajectory.append(flat(weights_of(model)))
        if sync.traits.synchronous:
            centre.append(flat(copy(sync.consensus())))
    sync.finish()
    return {"trajectory": torch.stack(trajectory), "centre": torch.stack(centre) if centre else None}


@pytest.mark.parametrize("period", [1, 2])
@together
def test_without_gradients_the_sum_of_replicas_and_centre_is_conserved_at_every_step(fabric, variant, period):
    results = fabric(3, only_elastic, Knobs(variant, 2.0, period), 12)
    rows = torch.stack([result["trajectory"] for result in results])
    sums = rows[:, 1:].sum(0) + results[0]["centre"]
    start = flat(weights_of(Case([[1]]).start())) + rows[:, 0].sum(0)
    assert torch.allclose(sums, start.expand_as(sums), rtol=0, atol=1e-13)
    spread = (rows - rows.mean(0)).square().sum((0, 2))
    assert spread[-1] < 0.9 * spread[0]  # and the springs do pull


@pytest.mark.parametrize("rest", [[0.0, 0.0, 0.0], [0.001, 0.0, 0.003]])
def test_without_gradients_the_sum_is_conserved_however_replicas_interleave(fabric, rest):
    *trained, server = fabric(4, only_elastic, Knobs("asynchronous", 2.0), 12, rest)
    rows = [result["trajectory"] for result in (*trained, server)]  # the server's: the centre
    before, now = (sum((row[i] for row in rows), torch.zeros(())) for i in (0, -1))
    assert torch.allclose(before, now, rtol=0, atol=1e-13)
    assert (rows[0][0] - rows[1][0]).norm() > 1.2 * (rows[0][-1] - rows[1][-1]).norm()


# -- the asynchronous centre


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_of_equal_replicas_in_turn_all_others_exchange_between_two_exchanges_of_one(fabric, replicas):
    case = Case([[2] * replicas] * 6, model=mlp)
    *_, server = fabric(replicas + 1, take_turns, Turns(AsyncEASGD(period=2), case))
    expected = Counter(range(replicas)) + Counter({replicas - 1: 2 * replicas})
    assert server["report"] == {"staleness": dict(expected), "lost": []}


def test_every_exchange_counts_once_whatever_the_paces(fabric):
    *_, server = fabric(4, only_elastic, Knobs("asynchronous", 1.0, 2), 11, [0.002, 0.0, 0.001])
    assert sum(server["report"]["staleness"].values()) == 3 * 5


def test_the_consensus_is_the_centre_as_last_seen_and_asking_sends_nothing(fabric):
    case = Case([[4], [4], [3], [1], [4]], model=mlp, optimizer=heavy)
    worker, server = fabric(2, take_turns, Turns(AsyncEASGD(rho=2.0, period=2), case))
    _, centre = ElasticForce(case, Knobs("asynchronous", 2.0, 2)).run(5)
    assert torch.allclose(centres(worker), centre, rtol=0, atol=1e-6)
    assert worker["ledger"] == {"send": 2 * (FLOAT * ENTRIES + REQUEST)}
    assert identical(worker["seen"][-1], worker["weights"])
    assert identical(worker["weights"], server["weights"])


# -- what it keeps


@pytest.mark.parametrize("halt", [2, 3, 5])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("period", [1, 4])
@together
def test_replicas_go_on_where_they_were_saved_bit_for_bit(virtual_workers, variant, period, nesterov, halt):
    knobs, case = Knobs(variant, 2.0, period), Case(UNEVEN, model=mlp, optimizer=heavy)
    straight = virtual_workers(3, live, Life(knobs.sync(nesterov), case, seeds=APART))
    saved = saved_after(straight, halt)
    resumed = virtual_workers(3, live, Life(knobs.sync(nesterov), case, seeds=[9], saved=saved, start=halt))
    assert torch.equal(after(resumed), after(straight)[halt:])
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(resumed, straight, strict=True))


@pytest.mark.parametrize("halt", [2, 3, 5])
@pytest.mark.parametrize("nesterov", [False, True])
def test_one_asynchronous_replica_goes_on_where_it_was_saved_bit_for_bit(fabric, nesterov, halt):
    case = Case([[4]] * 7, model=mlp, optimizer=heavy)
    straight, server = fabric(2, take_turns, Turns(AsyncEASGD(2.0, 3, nesterov), case))
    saved = to_bytes({"weights": straight["seen"][halt - 1], "sync": straight["states"][halt - 1]})
    resumed, again = fabric(2, take_turns, Turns(AsyncEASGD(2.0, 3, nesterov), case, saved, halt))
    assert torch.equal(after([resumed]), after([straight])[halt:])
    assert identical(again["weights"], server["weights"])


def test_a_resumed_asynchronous_run_has_replica_0_as_it_was_and_the_others_at_the_centre(fabric):
    case = Case([[4, 4, 4]] * 5, model=mlp, optimizer=heavy)
    *trained, _ = fabric(4, take_turns, Turns(AsyncEASGD(2.0, 2), case))
    saved = to_bytes({"weights": trained[0]["seen"][2], "sync": trained[0]["states"][2]})
    *resumed, _ = fabric(4, take_turns, Turns(AsyncEASGD(2.0, 2), case, saved, 3))
    assert identical(resumed[0]["begins"], trained[0]["trajectory"][2])
    assert all(identical(result["begins"], trained[0]["seen"][2]) for result in resumed[1:])
    assert not identical(resumed[0]["begins"], resumed[1]["begins"])


# -- what it costs


@pytest.mark.parametrize(("replicas", "period"), [(1, 1), (2, 4), (3, 1), (3, 4)])
@together
def test_stated_cost_is_what_a_step_sends_and_holds(fabric, variant, replicas, period):
    steps = 12
    sync = Knobs(variant, period=period).sync()
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    assert cost.server == {}
    primitive = "send" if variant == "round_robin" else "all_reduce"
    size = FLOAT * ENTRIES / period
    stated = {"send": size / replicas, "all_reduce": 2 * (replicas - 1) / replicas * size}[primitive]
    assert cost.worker == {primitive: pytest.approx(stated if replicas > 1 else 0)}
    results = fabric(replicas, live, Life(sync, Case([[2] * replicas] * steps, model=mlp)))
    for result in results:
        assert set(result["ledger"]) <= {primitive}
        assert result["buffers"] == cost.buffers
    sent = sum(result["ledger"].get(primitive, 0) for result in results)
    assert sent == pytest.approx(cost.worker[primitive] * steps * replicas, abs=replicas / 2)


@pytest.mark.parametrize(("replicas", "period"), [(1, 4), (3, 1), (3, 4)])
def test_stated_cost_is_what_replicas_and_server_send(fabric, replicas, period):
    steps, sync = 12, AsyncEASGD(period=period)
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    *trained, server = fabric(replicas + 1, take_turns, Turns(sync, Case([[2] * replicas] * steps, model=mlp)))
    exchanges = steps // period
    for result in trained:
        assert result["ledger"] == {"send": exchanges * (FLOAT * ENTRIES + REQUEST)}
        assert result["buffers"] == cost.buffers
    assert server["ledger"] == {"send": replicas * exchanges * FLOAT * ENTRIES}
    assert cost.worker["send"] * steps == pytest.approx(trained[0]["ledger"]["send"])
    assert cost.server["send"] * steps == pytest.approx(server["ledger"]["send"])


# -- a death


def one_dies(comm, case: Case) -> dict[str, Any]:
    """Replica 1 is killed after its sixth step, and so after one exchange."""
    if comm.rank == 1:
        case = replace(case, sizes=case.sizes[:6])
    sync = AsyncEASGD(rho=2.0)
    model = case.start()
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if comm.rank == comm.size - 1:
        assert isinstance(sync, AsyncEASGD)
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report()}
    for step in range(len(case.sizes)):
        batch = replica_batch(case, step, comm.rank)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        comm.elapse(0.005)
        sync.update()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sync.finish()
    return {"weights": weights_of(model)}


@pytest.mark.fault
@pytest.mark.parametrize("replicas", [2, 4])
def test_the_others_go_on_without_a_dead_replica(workers, replicas):
    case = Case([[2] * replicas] * 40, model=mlp)
    results = workers(replicas + 1, one_dies, case, lost=[1])
    *trained, server = [result for rank, result in enumerate(results) if rank != 1]
    assert all(identical(result["weights"], server["weights"]) for result in trained)
    assert server["report"]["lost"] == [1]
    assert sum(server["report"]["staleness"].values()) == (replicas - 1) * 10 + 1


# -- what it refuses


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("variant", VARIANTS)
def test_nesterov_without_a_momentum_is_refused_with_what_has_one(virtual_workers, variant, optimizer):
    knobs, case = Knobs(variant), Case([[2, 2]], optimizer=optimizer)
    with pytest.raises(ConfigError, match=r"sync.nesterov=true: .*optimizer.momentum=0.9"):
        virtual_workers(2, live, Life(knobs.sync(nesterov=True), case))


@pytest.mark.parametrize("variant", VARIANTS)
def test_several_dtypes_are_refused(variant):
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        Knobs(variant).sync().cost(list(TwoDtypes().parameters()), World(2))


# -- with a strategy of several parts


@together
def test_replicas_of_a_pipeline_have_a_centre_for_each_part(fabric, variant):
    """Two replicas of two stages train as two that hold the whole model."""
    knobs, case = Knobs(variant, 2.0, 2), Case([[4, 4], [3, 2], [4, 4], [2, 1], [4, 4]])
    plan = Plan(Pipeline(2, "gpipe", 2), knobs.sync(), case)
    results = fabric(workers_of(plan), train, plan)
    whole = fabric(2, train, Plan(DataParallel(), knobs.sync(), case))
    assert distance(results[0]["weights"] | results[1]["weights"], whole[0]["weights"]) < ROUNDING
    for stage in (0, 1):
        assert identical(results[stage]["weights"], results[2 + stage]["weights"])


def test_a_pipeline_has_a_server_for_each_part(fabric):
    case = Case([[4]] * 5)
    plan = Plan(Pipeline(2, "gpipe", 2), AsyncEASGD(2.0, 2), case)
    *stages, first, second = fabric(workers_of(plan), train, plan)
    whole = ElasticForce(case, Knobs("asynchronous", 2.0, 2)).run(5)[1][-1]
    assert close(flat(stages[0]["weights"] | stages[1]["weights"]), whole)
    assert identical(first["weights"], stages[0]["weights"])
    assert identical(second["weights"], stages[1]["weights"])


# -- whole runs


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("choice", ["easgd", "easgd_round_robin", "easgd_async", "easgd_momentum"])
def test_digits_are_learnt_within_two_points_of_serial_training(fork_server, tmp_path, choice):
    settings = ("tracking=none", "hardware.device=cpu", "hardware.threads=1")
    ways = ("strategy=single", "batch_size=64"), (f"sync={choice}", "hardware.workers=2")
    alone, result = (engine.run([*way, *settings], root=tmp_path, quiet=True) for way in ways)
    assert alone is not None and alone.accuracy is not None
    assert result is not None and result.accuracy is not None
    assert result.accuracy > alone.accuracy - 0.02
