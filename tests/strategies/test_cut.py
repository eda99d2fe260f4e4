"""Where a pipeline is cut: against every cut that there is."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.planning.make_plan import make_plan
from paceline.engine.planning.planned import Plan
from paceline.engine.predict.timetable import make_timetable
from paceline.strategies.core.balance import lightest

GPT = ("model=gpt", "data=text", "model.width=16", "model.n_layer=2", "data.context=32")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.data())
def test_the_cheapest_of_the_lightest_partitions(drawn, data):
    """A part's weight may depend on which part it is."""
    n, parts = len(drawn), data.draw(st.integers(1, len(drawn)))
    scales = data.draw(st.lists(st.integers(1, 5), min_size=parts, max_size=parts))

    def weight(part: int, i: int, j: int) -> float:
        return scales[part] * sum(each for each, _ in drawn[i:j])

    def price(i: int) -> float:
        return drawn[i][1]

    def judged(cuts: tuple[int, ...]) -> tuple[float, float]:
        return max(weight(k, *ends) for k, ends in enumerate(pairwise([0, *cuts, n]))), sum(map(price, cuts))

    every = map(judged, combinations(range(1, n), parts - 1))
    best = min(every)
    assert judged(tuple(lightest(n, parts, weight, price))) == best
    assert judged(tuple(lightest(n, parts, weight)))[0] == best[0]


def planned(*overrides: str) -> Plan:
    return make_plan(compose(["strategy=pipeline", "hardware=virtual", *overrides]))


def held(*overrides: str) -> int:
    """By the largest stage, as the plan's own account has it."""
    kinds = ("parameters", "gradients", "activations")
    return max(sum(part.memory[kind] for kind in kinds) for part in planned(*overrides).parts)


def slowest(*overrides: str) -> float:
    """The compute of the slowest worker, as the timetable has it."""
    found = make_timetable(compose(["strategy=pipeline", "hardware=virtual", *overrides]))
    assert found is not None
    return max(found.simulation.busy)


def every_cut(layers: int, stages: int, *overrides: str) -> list[str]:
    """Those that leave no stage without parameters."""
    cuts: list[str] = []
    for each in combinations(range(1, layers), stages - 1):
        try:
            planned(*overrides, f"strategy.stages={stages}", f"strategy.cut={list(each)}".replace(" ", ""))
        except ValueError:
            continue
        cuts.append(f"strategy.cut={list(each)}".replace(" ", ""))
    return cuts


slow = pytest.mark.slow


@pytest.mark.parametrize("schedule", ["gpipe", pytest.param("1f1b", marks=slow), pytest.param("zb_h1", marks=slow)])
@pytest.mark.slow
def test_no_cut_has_a_faster_slowest_stage_than_that_by_time(schedule):
    of = ("model=cnn", f"strategy.schedule={schedule}", "hardware.overhead=0")
    assert slowest(*of) == pytest.approx(min(slowest(*of, cut) for cut in every_cut(12, 2, *of)), rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [
        ("1f1b", "false"),
        pytest.param("1f1b", "true", marks=slow),
        pytest.param("gpipe", "false", marks=slow),
        pytest.param("gpipe", "true", marks=slow),
    ],
)
def test_no_cut_holds_less_in_its_largest_stage_than_that_by_memory(schedule, recompute):
    of = ("model=cnn", f"strategy.schedule={schedule}", f"strategy.recompute={recompute}", "strategy.micro_batches=2")
    least = min(held(*of, cut) for cut in every_cut(12, 2, *of))
    assert held(*of, "strategy.cut=memory") == least


@slow
@pytest.mark.parametrize("overrides", [("model=cnn",), ("model.hidden=[64,32,96,16,128]",), GPT])
def test_three_stages_hold_the_least_and_take_the_least(overrides):
    of = (*overrides, "strategy.stages=3", "strategy.schedule=1f1b", "hardware.overhead=0")
    layers = sum(len(part.layers) for part in planned(*of).parts)
    cuts = every_cut(layers, 3, *of)
    assert held(*of, "strategy.cut=memory") == min(held(*of, cut) for cut in cuts)
    assert slowest(*of) == pytest.approx(min(slowest(*of, cut) for cut in cuts), rel=1e-12)


def test_by_time_is_the_usual_choice_and_of_equal_cuts_sends_the_least():
    """A pool's flops are none, and it makes what is sent four times smaller."""
    parts = planned("model=cnn").parts
    assert [part.layers[-1] for part in parts] == ["pool2", "output"]
    by_parameters = planned("model=cnn", "strategy.cut=parameters").parts
    assert by_parameters[0].layers[-1] == "hidden1"


def test_a_cut_by_its_name_of_before_is_refused_with_that_of_now():
    with pytest.raises(ConfigError, match=r"^strategy\.cuts=\[3\]: is called strategy\.cut now$"):
        compose(["strategy=pipeline", "strategy.cuts=[3]"])


def test_what_is_no_way_to_cut_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"strategy\.cut.*time.*memory.*parameters"):
        planned("strategy.cut=flops")
