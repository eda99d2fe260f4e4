"""PipeDream and PipeDream-2BW against their recursions in plain torch, which know no schedule and no message."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Case, Plan, Weights, distance, identical, momentum, train, weights_of, workers_of
from oracles import adam as adam_of
from stage_times import even
from torch import nn
from torch.func import functional_call

from paceline.conf.errors import ConfigError
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.actions import Action
from paceline.strategies.pipelining.check import check
from paceline.strategies.pipelining.simulate import in_flight, live_versions, simulate, steady
from paceline.strategies.pipelining.without_flush import StageActions, period, stream, without_flush
from paceline.strategies.sync.bsp import BSP

FEATURES, CLASSES = 6, 4


def deep() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 10),
        nn.Sequential(nn.LayerNorm(10), nn.Tanh(), nn.Linear(10, 8)),
        nn.Linear(8, 8, bias=False),
        nn.Sequential(nn.ReLU(), nn.Linear(8, CLASSES)),
    )


def deep64() -> nn.Sequential:
    return deep().double()


CUTS = {2: [2], 3: [1, 2], 4: [1, 2, 3]}
HOW = {  # schedule, vertical sync -> the version that stage i (from 0) of p reads at time t
    ("pipedream", False): lambda t, i, p: t - (p - 1 - i),
    ("pipedream", True): lambda t, i, p: t - (p - 1),
    ("pipedream_2bw", False): lambda t, i, p: t - 1,
}


def plain(optimizer_parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(optimizer_parameters, lr=0.1)


def recursion(case: Case, stages: int, reads, micro_batches: int, drains: tuple[int, ...] = ()) -> Weights:
    """W(t+1) = W(t) - eta grad f(w_1(...), ..., w_p(...)), time being counted from the last time that it drained."""
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    layer_of = {name: int(name.split(".")[0]) for name, _ in model.named_parameters()}
    stage_of = {name: sum(cut <= layer for cut in CUTS[stages]) for name, layer in layer_of.items()}
    history: list[Weights] = []
    for step in range(len(case.sizes)):
        if step in drains:
            history = []
        history.append(weights_of(model))
        t = len(history) - 1
        mixed = {
            name: history[max(reads(t, stage, stages), 0)][name].clone().requires_grad_()
            for name, stage in stage_of.items()
        }
        inputs, targets = case.step(step)
        pieces = min(micro_batches, len(targets))
        for x, y in zip(torch.tensor_split(inputs, pieces), torch.tensor_split(targets, pieces), strict=True):
            (F.cross_entropy(functional_call(model, mixed, (x,)), y) * (len(y) / len(targets))).backward()
        for name, parameter in model.named_parameters():
            parameter.grad = mixed[name].grad
        optimizer.step()
    return weights_of(model)


def strategy_of(stages: int, schedule: str, vertical: bool, micro_batches: int, recompute: bool = False) -> Pipeline:
    return Pipeline(stages, schedule, micro_batches, CUTS[stages], recompute, vertical_sync=vertical)


def trained(workers, strategy: Pipeline, case: Case) -> tuple[list[dict], Weights]:
    plan = Plan(strategy, BSP(), case)
    results = workers(workers_of(plan), train, plan)
    return results, {name: w for stage in results[: strategy.parts] for name, w in stage["weights"].items()}


SIZES = [[8], [8], [7], [8], [5], [2], [1], [8], [8]]


@pytest.mark.dist
@pytest.mark.parametrize("optimizer", [plain, momentum, adam_of], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("schedule", "vertical"), HOW)
def test_training_is_the_delayed_recursion_bit_for_bit(fabric, schedule, vertical, stages, optimizer):
    """With batches of fewer samples than micro-batches in between."""
    case = Case(SIZES, model=deep, optimizer=optimizer)
    _, whole = trained(fabric, strategy_of(stages, schedule, vertical, 4), case)
    micro_batches = 1 if schedule == "pipedream" else 4
    expected = recursion(case, stages, HOW[schedule, vertical], micro_batches)
    assert identical(whole, expected)
    undelayed = recursion(case, stages, lambda t, i, p: t, micro_batches)
    assert not identical(whole, undelayed)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "vertical"), HOW)
def test_recomputing_reads_the_version_of_the_forward_pass(virtual_workers, schedule, vertical, recompute):
    case = Case(SIZES, model=deep, optimizer=adam_of)
    _, whole = trained(virtual_workers, strategy_of(3, schedule, vertical, 3, recompute), case)
    micro_batches = 1 if schedule == "pipedream" else 3
    assert identical(whole, recursion(case, 3, HOW[schedule, vertical], micro_batches))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_2bw_is_its_recursion_with_fewer_micro_batches_than_stages_too(virtual_workers, micro_batches):
    case = Case(SIZES, model=deep)
    _, whole = trained(virtual_workers, strategy_of(4, "pipedream_2bw", False, micro_batches), case)
    assert identical(whole, recursion(case, 4, HOW["pipedream_2bw", False], micro_batches))


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "vertical"), HOW)
def test_two_replicas_average_each_stages_gradients_before_each_update(virtual_workers, schedule, vertical):
    """A replica's last batch may be empty."""
    case = Case([[4, 4], [3, 2], [4, 4], [1, 0], [2, 2], [0, 1], [4, 4]], model=deep64)
    results, whole = trained(virtual_workers, strategy_of(3, schedule, vertical, 1), case)
    assert distance(whole, recursion(case, 3, HOW[schedule, vertical], 1)) < 1e-12
    for stage in range(3):
        assert identical(results[stage]["weights"], results[3 + stage]["weights"])


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "vertical"), HOW)
def test_bytes_and_versions_are_those_stated(virtual_workers, schedule, vertical):
    strategy, case = strategy_of(3, schedule, vertical, 4), Case([[8]] * 7, model=deep)
    with torch.device("meta"):
        parts = strategy.split(deep())
        stated = strategy.cost(parts, torch.empty(8, FEATURES))
    results, _ = trained(virtual_workers, strategy, case)
    assert [r["ledger"].get("send", 0) for r in results] == [7 * traffic["send"] for traffic in stated]


# -- the schedules

many = st.tuples(st.integers(2, 6), st.integers(1, 8), st.sampled_from(list(HOW)))


def schedule_of(workers: int, micro_batches: int, schedule: str, vertical: bool):
    reads = "before" if schedule == "pipedream_2bw" else "entry" if vertical else "newest"
    m = 1 if schedule == "pipedream" else micro_batches
    return stream(workers, m, reads), m


@given(many)
def test_versions_that_are_read_are_those_of_the_recursion(drawn):
    workers, micro_batches, how = drawn
    (_, versions), m = schedule_of(workers, micro_batches, *how)
    for (stage, j), version in versions.items():
        assert version == max(HOW[how](j // m, stage, workers), 0)


@given(many)
def test_what_is_in_flight_and_how_many_versions_live(drawn):
    p, micro_batches, (name, vertical) = drawn
    (schedule, versions), _ = schedule_of(p, micro_batches, name, vertical)
    assert all(most <= p - i for i, most in enumerate(in_flight(schedule)))
    expected = {
        ("pipedream", False): [p - i for i in range(p)],
        ("pipedream", True): [p] * p,
        ("pipedream_2bw", False): [2] * p,
    }
    assert live_versions(schedule, versions) == expected[name, vertical]


@given(many)
def test_the_checker_passes_them_and_each_backward_pass_is_in_an_update(drawn):
    workers, micro_batches, how = drawn
    (schedule, _), m = schedule_of(workers, micro_batches, *how)
    batches = sum(action.kind == "U" for action in schedule[0])
    check(schedule, workers, batches * m, flush=False)
    with pytest.raises(ConfigError, match="no update of stage 0 comes after it"):
        check([[a for a in schedule[0] if a.kind != "U"], *schedule[1:]], workers, batches * m, flush=False)
    with pytest.raises(ConfigError, match="a schedule with a flush is of F, B, I and W"):
        check(schedule, workers, batches * m)


@given(many, st.floats(0.1, 4.0), st.floats(0.1, 4.0))
def test_steady_state_has_no_bubble_and_the_stream_fills_and_drains_once(drawn, forward, backward):
    p, micro_batches, how = drawn
    (schedule, versions), m = schedule_of(p, micro_batches, *how)
    if how[0] == "pipedream_2bw" and m < p - 1:
        return
    found = simulate(schedule, even(p, forward, backward, 0.0), versions=versions)
    in_all = sum(action.kind == "F" for action in schedule[0])
    assert found.seconds == pytest.approx((in_all + p - 1) * (forward + backward))
    assert found.bubble == pytest.approx((p - 1) / (in_all + p - 1))
    steps = period(p, m)
    begins, ends = (Action(p - 1, "F", i * steps * m) for i in (2, 3))
    middle = steady(found, begins, ends, steps)
    assert middle.seconds == pytest.approx(steps * m * (forward + backward))
    assert middle.bubble == pytest.approx(0, abs=1e-9)


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.sampled_from(["newest", "entry", "before"]),
)
def test_a_row_has_every_micro_batch_once_and_every_update_in_order_whatever_batches_come(workers, sizes, reads):
    for stage in range(workers):
        row = StageActions(stage, workers, reads)
        placed = [each for size in sizes for each in row.enter(size)] + row.drain()
        for kind in "FB":
            found = [a.micro_batch for a, _ in placed if a.kind == kind]
            assert len(found) == sum(sizes) and found == sorted(set(found))
        assert sum(a.kind == "U" for a, _ in placed) == len(sizes)
        assert [v for a, v in placed if a.kind == "F"] == [v for a, v in placed if a.kind == "B"]
        newest = 0
        for i, (action, version) in enumerate(placed):
            newest += action.kind == "U"
            later = [v for a, v in placed[i + 1 :] if a.kind in "FB"]
            if action.kind == "U":
                assert all(v >= version for v in later)
            else:
                assert version <= newest


def test_as_papers_draw_them():
    """Figure 8 of PipeDream for three stages: which versions minibatches read on the first and the last."""
    schedule, versions = without_flush(3, 5, 1, "newest")
    assert " ".join(map(str, schedule[0])) == "0F0 0F1 0F2 0B0 0U0 0F3 0B1 0U1 0F4 0B2 0U2 0B3 0U3 0B4 0U4"
    assert [versions[0, j] for j in range(5)] == [0, 0, 0, 1, 2]
    assert [versions[2, j] for j in range(5)] == [0, 1, 2, 3, 4]
    schedule, versions = without_flush(2, 3, 2, "before")
    assert " ".join(map(str, schedule[0])) == "0F0 0F1 0B0 0F2 0B1 0U1 0F3 0B2 0F4 0B3 0U3 0F5 0B4 0B5 0U5"
    assert [versions[0, j] for j in range(6)] == [0, 0, 0, 0, 1, 1] == [versions[1, j] for j in range(6)]


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"schedule": "1f1b", "vertical_sync": True}, "vertical_sync=true: is for strategy.schedule=pipedream"),
        (
            {"schedule": "pipedream_2bw", "vertical_sync": True},
            "vertical_sync=true: is for strategy.schedule=pipedream",
        ),
        ({"schedule": "pipedream", "chunks": 2}, "chunks=2: .*schedule=pipedream gives each worker one chunk"),
        ({"schedule": "pipedrem"}, "did you mean pipedream"),
    ],
)
def test_knobs_that_do_not_go_together_are_refused(knobs, says):
    with pytest.raises(ConfigError, match=says):
        Pipeline(**knobs)


def test_only_schedules_without_a_flush_own_their_update():
    for schedule, vertical in product(["naive", "gpipe", "1f1b", "interleaved", "zb_h1"], [False]):
        assert Pipeline(2, schedule, vertical_sync=vertical).own_sync() is None
    for schedule, vertical in HOW:
        strategy = Pipeline(2, schedule, vertical_sync=vertical)
        assert strategy.own_sync() is strategy.own_sync() is not None
