"""Local SGD against its recursion, simulated in plain torch: w_i <- mean_j (w_j - eta G_j) at the end of a round."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    ROUNDING,
    Branching,
    Case,
    Plan,
    TwoDtypes,
    adam,
    branching64,
    distance,
    identical,
    mlp,
    momentum,
    serial,
    train,
    workers_of,
)
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor, nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.exchange.clip import ByValue
from paceline.exchange.outer import nesterov
from paceline.strategies.core.cost import World
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.local_sgd import LocalSGD

pytestmark = pytest.mark.dist
APART = [0, 1, 2, 3]  # replicas start apart: replica 0's start counts
FLOAT = 4  # bytes
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())
BUFFER, MOMENTS = ["momentum_buffer"], ["exp_avg", "exp_avg_sq"]


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01)


def sgd_plain(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True)
class Knobs:
    period: int = 4
    average_state: tuple[str, ...] = ()
    switch_step: int = 0
    outer_lr: float | None = None
    outer_momentum: float = 0.0

    def sync(self) -> LocalSGD:
        return LocalSGD(self.period, self.average_state, self.switch_step, self.outer_lr, self.outer_momentum)


# -- the oracle


class Recursion:
    """All replicas in one place, with explicit loops; DiLoCo's outer optimizer is torch's own."""

    def __init__(self, case: Case, knobs: Knobs) -> None:
        self.case, self.knobs = case, knobs
        self.replicas = [Replica(case, 0, rank) for rank in range(len(case.sizes[0]))]
        self.start = nn.Parameter(self.replicas[0].vector)
        self.outer = None
        if knobs.outer_lr is not None:
            options = {"momentum": knobs.outer_momentum, "nesterov": knobs.outer_momentum > 0}
            self.outer = torch.optim.SGD([self.start], lr=knobs.outer_lr, **options)
        self.seen = [0] * len(self.replicas)

    def run(self, steps: int | None = None) -> Tensor:
        """[steps, replicas, entries]: the weights after each step."""
        trajectory = []
        for t in range(len(self.case.sizes) if steps is None else steps):
            self.step(t)
            trajectory.append(torch.stack([replica.vector for replica in self.replicas]))
        return torch.stack(trajectory)

    def step(self, t: int) -> None:
        for replica in self.replicas:
            replica.gradient(t)
        if t < self.knobs.switch_step:
            self.average_gradients(t)
        for replica in self.replicas:
            replica.step()
        if t < self.knobs.switch_step:
            self.start.data = self.replicas[0].vector
            return
        self.seen = [n + size for n, size in zip(self.seen, self.case.sizes[t], strict=True)]
        if (t + 1 - self.knobs.switch_step) % self.knobs.period == 0:
            self.end_round()

    def average_gradients(self, t: int) -> None:
        sizes = self.case.sizes[t]
        for twins in zip(*(replica.model.parameters() for replica in self.replicas), strict=True):
            mean = torch.zeros_like(twins[0])
            for parameter, size in zip(twins, sizes, strict=True):
                if parameter.grad is not None:
                    mean += parameter.grad * size / sum(sizes)
            for parameter in twins:
                parameter.grad = mean.clone()

    def mean(self, rows: list[Tensor]) -> Tensor:
        return sum((row * n / sum(self.seen) for row, n in zip(rows, self.seen, strict=True)), torch.zeros(()))

    def end_round(self) -> None:
        for key in self.knobs.average_state:
            self.average_state(key)
        mean = self.mean([replica.vector for replica in self.replicas])
        if self.outer is None:
            self.start.data = mean
        else:
            self.start.grad = self.start.data - mean
            self.outer.step()
        for replica in self.replicas:
            replica.vector = self.start.data
        self.seen = [0] * len(self.replicas)

    def average_state(self, key: str) -> None:
        for twins in zip(*(replica.model.parameters() for replica in self.replicas), strict=True):
            kept = [r._optimizer.state.get(p, {}).get(key) for r, p in zip(self.replicas, twins, strict=True)]
            mean = self.mean([torch.zeros_like(twins[0]) if own is None else own for own in kept])
            for own in kept:
                if own is not None:
                    own.copy_(mean)


def after(results: list[dict[str, Any]]) -> Tensor:
    """[steps, replicas, entries]"""
    return torch.stack([stacked(results, step) for step in range(len(results[0]["trajectory"]))])


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=ROUNDING)


def agree(results: list[dict[str, Any]]) -> list[bool]:
    """After which steps all replicas have the same bits."""
    return [bool((rows == rows[0]).all()) for rows in after(results)]


UNEVEN = [[4, 4, 4], [3, 3, 2], [4, 4, 4], [1, 0, 0], [4, 4, 4], [2, 1, 1], [4, 4, 4]]
RULES = {
    "plain": (Knobs(3), momentum),
    "plain, one step": (Knobs(1), momentum),
    "plain, adam": (Knobs(2), adam),
    "momentum averaged": (Knobs(3, tuple(BUFFER)), momentum),
    "moments averaged": (Knobs(2, tuple(MOMENTS)), adam),
    "post-local": (Knobs(2, switch_step=3), momentum),
    "post-local, averaged": (Knobs(3, tuple(BUFFER), switch_step=1), momentum),
    "diloco": (Knobs(3, outer_lr=0.7, outer_momentum=0.9), adam),
    "diloco after a switch": (Knobs(2, outer_lr=0.7, outer_momentum=0.5, switch_step=2), momentum),
}


# -- what it computes


@pytest.mark.parametrize(("knobs", "optimizer"), RULES.values(), ids=list(RULES))
def test_replicas_follow_the_recursion(fabric, knobs, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    results = fabric(3, live, Life(knobs.sync(), case, seeds=APART))
    assert close(after(results), Recursion(case, knobs).run())


def test_the_recursions_differ_from_one_another():
    """The test above can tell them apart."""
    ends = [Recursion(Case(UNEVEN), knobs).run()[-1] for knobs, optimizer in RULES.values() if optimizer is momentum]
    ends.append(Recursion(Case(UNEVEN), Knobs(3, outer_lr=0.7, outer_momentum=0.9)).run()[-1])
    assert all((a - b).abs().max() > 1e6 * ROUNDING for i, a in enumerate(ends) for b in ends[:i])


@pytest.mark.parametrize("sizes", [[[4, 4]] * 4, [[4, 4], [3, 2], [1, 0], [4, 4]]], ids=["even", "uneven"])
def test_a_round_of_one_step_with_plain_sgd_is_bsp(fabric, sizes):
    case = Case(sizes, optimizer=sgd)
    for result in fabric(2, live, Life(LocalSGD(period=1), case)):
        assert distance(result["weights"], serial(case)) < ROUNDING


@pytest.mark.parametrize("average_state", [[], BUFFER], ids=["kept", "averaged"])
def test_a_round_of_one_step_with_averaged_momentum_is_bsp_on_uneven_batches_too(fabric, average_state):
    """A momentum that is kept is weighted by the shares of a later step than it is made of."""
    case = Case([[4, 4], [3, 1], [4, 2], [4, 4]])
    [result, _] = fabric(2, live, Life(LocalSGD(1, average_state), case))
    far = distance(result["weights"], serial(case))
    assert far < ROUNDING if average_state else far > 1e6 * ROUNDING


def test_replicas_have_the_same_bits_after_a_round_and_differ_inside_one(fabric):
    """Where the mean of the gradients, not of the models, were taken at a round's end, they would never agree."""
    case = Case([[4, 4, 4]] * 7, model=mlp)
    results = fabric(3, live, Life(LocalSGD(period=3), case, seeds=APART))
    assert agree(results) == [False, False, True, False, False, True, False]


def test_before_the_switch_it_is_bsp_bit_for_bit_and_rounds_begin_there(fabric):
    case = Case([[4, 4]] * 8, model=mlp)
    results = fabric(2, live, Life(LocalSGD(period=2, switch_step=3), case, seeds=APART))
    assert agree(results) == [True, True, True, False, True, False, True, False]
    first = replace(case, sizes=case.sizes[:3])
    [bsp, _] = fabric(2, train, Plan(DataParallel(), BSP(), first, seeds=APART))
    assert identical(results[0]["trajectory"][2], bsp["weights"])


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("knobs", [Knobs(2), Knobs(2, switch_step=3), Knobs(2, tuple(BUFFER))], ids=str)
def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(fabric, knobs, optimizer):
    if knobs.average_state and optimizer is adam:
        knobs = replace(knobs, average_state=tuple(MOMENTS))
    case = Case([[4], [3], [1], [4], [2]], model=mlp, optimizer=optimizer)
    [result] = fabric(1, live, Life(knobs.sync(), case))
    assert identical(result["weights"], serial(case))
    assert identical(result["result"], result["weights"])
    assert sum(result["ledger"].values()) == 0


@pytest.mark.parametrize("model", [branching64, Branching])
def test_state_that_a_replica_does_not_have_counts_as_zero(fabric, model):
    """A branch that only one replica has used: its momentum is halved there, and the others get none."""
    case = Case([[4, 4]] * 4, model=model, branches=[[True, False], [False, False], [True, True], [False, True]])
    knobs = Knobs(2, tuple(BUFFER))
    tolerance = ROUNDING if model is branching64 else 1e-5
    results = fabric(2, live, Life(knobs.sync(), case))
    assert torch.allclose(after(results), Recursion(case, knobs).run(), rtol=0, atol=tolerance)


# -- DiLoCo's outer step


vectors = st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(lambda values: torch.tensor(values).double())


@given(vectors, st.lists(vectors, min_size=1, max_size=4), st.floats(0.01, 2), st.floats(0.01, 0.99))
def test_the_outer_step_is_torchs_nesterov_momentum(start, means, lr, mu):
    parameter = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=mu, nesterov=True)
    w, v = start, torch.zeros_like(start)
    for mean in means:
        parameter.grad = parameter.detach() - mean
        optimizer.step()
        w, v = nesterov(w, v, mean, lr, mu)
        assert torch.allclose(w, parameter.detach(), rtol=1e-9, atol=1e-9)


@given(vectors, vectors, vectors)
def test_an_outer_step_of_one_without_momentum_takes_the_mean(w, v, mean):
    assert torch.allclose(nesterov(w, v, mean, 1.0, 0.0)[0], mean, rtol=0, atol=1e-13)


def test_diloco_with_an_outer_rate_of_one_and_no_momentum_is_local_sgd(fabric):
    case = Case(UNEVEN)
    plain, outer = (after(fabric(3, live, Life(knobs.sync(), case))) for knobs in (Knobs(3), Knobs(3, outer_lr=1.0)))
    assert close(plain, outer)


# -- its consensus and its end


@pytest.mark.parametrize(
    "knobs", [Knobs(3), Knobs(3, outer_lr=0.7, outer_momentum=0.9), Knobs(2, switch_step=3)], ids=str
)
def test_the_consensus_is_what_a_round_would_leave_and_asking_changes_nothing(fabric, knobs):
    case = Case(UNEVEN)
    asked = fabric(3, live, Life(knobs.sync(), case, looks=True))
    for step in range(len(UNEVEN)):
        recursion = Recursion(case, knobs)
        recursion.run(step + 1)
        if sum(recursion.seen) > 0:
            recursion.end_round()
        for result in asked:
            assert close(flat(result["seen"][step]), recursion.replicas[0].vector)
    unasked = fabric(3, live, Life(knobs.sync(), case))
    assert torch.equal(after(asked), after(unasked))


@pytest.mark.parametrize("steps", [6, 7, 8])
def test_the_end_leaves_the_mean_on_all_also_of_a_short_round(fabric, steps):
    case = Case([[4, 4, 4], [3, 3, 2]] * 4)
    case = replace(case, sizes=case.sizes[:steps])
    results = fabric(3, live, Life(LocalSGD(period=3), case))
    recursion = Recursion(case, Knobs(3))
    recursion.run()
    if steps % 3:
        recursion.end_round()
    for result in results:
        assert close(flat(result["weights"]), recursion.replicas[0].vector)
        assert identical(result["weights"], results[0]["weights"])
        assert identical(result["result"], result["weights"])


# -- what it keeps


@pytest.mark.parametrize("halt", [2, 3, 5])
@pytest.mark.parametrize(("knobs", "optimizer"), RULES.values(), ids=list(RULES))
def test_replicas_go_on_where_they_were_saved_bit_for_bit(virtual_workers, knobs, optimizer, halt):
    case = Case(UNEVEN, model=mlp, optimizer=optimizer)
    straight = virtual_workers(3, live, Life(knobs.sync(), case, seeds=APART))
    saved = saved_after(straight, halt)
    resumed = virtual_workers(3, live, Life(knobs.sync(), case, seeds=[9], saved=saved, start=halt))
    assert torch.equal(after(resumed), after(straight)[halt:])
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(resumed, straight, strict=True))


def test_real_processes_go_on_where_they_were_saved_bit_for_bit(workers):
    case = Case([[4, 4]] * 7, model=mlp)
    knobs = Knobs(4, tuple(BUFFER), outer_lr=0.7, outer_momentum=0.5)
    straight = workers(2, live, Life(knobs.sync(), case))
    resumed = workers(2, live, Life(knobs.sync(), case, saved=saved_after(straight, 5), start=5))
    assert torch.equal(after(resumed), after(straight)[5:])


# -- what it costs


@pytest.mark.parametrize(
    "knobs", [Knobs(), Knobs(average_state=tuple(BUFFER)), Knobs(outer_lr=0.7, outer_momentum=0.9)], ids=str
)
@pytest.mark.parametrize(("replicas", "period"), [(2, 4), (3, 1), (3, 3)])
def test_stated_cost_is_what_a_step_sends_and_holds(fabric, replicas, knobs, period):
    """Bytes = BSP's / H for the weights, and as many for each name of averaged state."""
    knobs, steps = replace(knobs, period=period), 12
    cost = knobs.sync().cost(list(mlp().parameters()), World(replicas))
    bsp = 2 * (replicas - 1) / replicas * FLOAT * ENTRIES
    assert cost.worker == {"all_reduce": pytest.approx(bsp * (1 + len(knobs.average_state)) / period)}
    assert cost.server == {}
    for result in fabric(replicas, live, Life(knobs.sync(), Case([[2] * replicas] * steps, model=mlp))):
        assert result["ledger"].keys() == {"all_reduce"}
        assert result["ledger"]["all_reduce"] == pytest.approx(cost.worker["all_reduce"] * steps, abs=0.5)
        assert result["buffers"] == cost.buffers


def test_before_the_switch_a_step_sends_what_bsp_does(fabric):
    """s steps of BSP and n - s of local SGD send s + (n - s) / H times as much as one step of BSP."""
    sync = LocalSGD(period=4, switch_step=6)
    cost = sync.cost(list(mlp().parameters()), World(2, 1, steps=14))
    assert not cost.varies and cost.worker["all_reduce"] * 14 == pytest.approx(FLOAT * ENTRIES * (6 + 8 // 4))
    for result in fabric(2, live, Life(sync, Case([[2, 2]] * 14, model=mlp))):
        assert result["ledger"] == {"all_reduce": FLOAT * ENTRIES * (6 + 8 // 4)}
        assert result["buffers"] == cost.buffers


def test_how_much_a_switch_saves_is_said_only_where_the_steps_are_known():
    unknown, short = (LocalSGD(switch_step=6).cost(list(mlp().parameters()), World(2, steps=n)) for n in (None, 5))
    assert str(unknown.varies).startswith("sync.switch_step=6: ") and unknown.buffers == short.buffers > 0
    one = LocalSGD(switch_step=1).cost(list(mlp().parameters()), World(2, steps=1))
    assert short.worker == one.worker == {"all_reduce": FLOAT * ENTRIES}  # BSP's


# -- what it refuses


@pytest.mark.parametrize(
    ("optimizer", "name", "kept"), [(momentum, "exp_avg", "momentum_buffer"), (sgd, "momentum_buffer", "nothing")]
)
def test_state_that_the_optimizer_does_not_keep_is_refused_with_what_it_keeps(virtual_workers, optimizer, name, kept):
    case = Case([[2, 2]] * 2, optimizer=optimizer)
    with pytest.raises(ConfigError, match=rf"sync.average_state: SGD keeps no {name} .*keeps {kept}"):
        virtual_workers(2, live, Life(LocalSGD(1, [name]), case))


def test_a_replica_clips_its_gradient_before_it_steps(virtual_workers):
    case = Case([[4, 4]] * 2, model=mlp, optimizer=sgd_plain)
    [first, second] = virtual_workers(2, live, Life(LocalSGD(2, clip=ByValue(1e-20)), case))[0]["trajectory"]
    assert torch.equal(flat(first), flat(second))  # a step of 1e-21 changes no bit


def test_replicas_step_with_one_gradient_where_bsp_comes_first():
    assert [LocalSGD(switch_step=first).traits.steps_together for first in (0, 4)] == [False, True]


def test_outer_momentum_without_an_outer_rate_is_refused():
    with pytest.raises(ConfigError, match=r"sync.outer_momentum=0.9: .*sync.outer_lr"):
        LocalSGD(outer_momentum=0.9)


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        LocalSGD().cost(list(TwoDtypes().parameters()), World(2))


# -- with a strategy of several parts


@pytest.mark.parametrize("knobs", [Knobs(2), Knobs(2, switch_step=1, outer_lr=0.5, outer_momentum=0.5)], ids=str)
def test_replicas_of_a_pipeline_average_part_by_part(fabric, knobs):
    """Two replicas of two stages train as two that hold the whole model."""
    case = Case([[4, 4], [3, 2], [4, 4], [1, 0], [4, 4]])
    plan = Plan(Pipeline(2, "gpipe", 2), knobs.sync(), case)
    results = fabric(workers_of(plan), train, plan)
    whole = fabric(2, train, Plan(DataParallel(), knobs.sync(), case))
    assert distance(results[0]["weights"] | results[1]["weights"], whole[0]["weights"]) < ROUNDING
    for stage in (0, 1):
        assert identical(results[stage]["weights"], results[2 + stage]["weights"])


# -- whole runs


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("choice", ["local_sgd", "post_local_sgd", "diloco"])
def test_digits_are_learnt_within_two_points_of_serial_training(fork_server, tmp_path, choice):
    settings = ("tracking=none", "hardware.device=cpu", "hardware.threads=1")
    ways = ("strategy=single", "batch_size=64"), (f"sync={choice}", "hardware.workers=2")
    alone, result = (engine.run([*way, *settings], root=tmp_path, quiet=True) for way in ways)
    assert alone is not None and alone.accuracy is not None
    assert result is not None and result.accuracy is not None
    assert result.accuracy > alone.accuracy - 0.02
