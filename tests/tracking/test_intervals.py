"""By how much one setting has more than another: against scipy's paired and Welch tests, and on measured times."""

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from paceline.tracking.columns import BY_KEY, RATIOS, is_ratio
from paceline.tracking.intervals import between

values = st.lists(st.integers(1, 1000).map(float), min_size=2, max_size=6)
pairs = st.lists(st.tuples(*[st.integers(1, 1000).map(float)] * 2), min_size=2, max_size=6)

# Seconds to 87 % of a wide MLP, seeds 0 to 2 (docs/log.md): a seed needs two epochs or three, whatever the way.
SINGLE = {0: 14.65, 1: 9.94, 2: 14.51}
TENSOR = {0: 15.18, 1: 10.18, 2: 14.85}
DATA_PARALLEL = {0: 22.97, 1: 15.44, 2: 23.14}


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def by_seed(values: list[float], first: int = 0) -> dict[int, float | None]:
    return dict(enumerate(values, first))


@given(pairs, st.booleans())
def test_settings_of_the_same_seeds_are_compared_as_students_paired_test_does(
    both: list[tuple[float, float]], ratio: bool
) -> None:
    ours = between(by_seed([x for x, _ in both]), by_seed([y for _, y in both]), ratio)
    scale: Callable[[float], float] = math.log if ratio else float
    back: Callable[[float], float] = math.exp if ratio else float
    xs, ys = [scale(x) for x, _ in both], [scale(y) for _, y in both]
    assume(len({round(y - x, 9) for x, y in zip(xs, ys, strict=True)}) > 1)  # scipy warns of the others
    interval = stats.ttest_rel(ys, xs).confidence_interval(0.95)
    assert (ours.kind, ours.is_ratio, ours.seeds) == ("paired", ratio, tuple(range(len(both))))
    assume(abs(interval.high) < 500)  # exp of more is beyond a float
    assert (ours.low, ours.high) == pytest.approx((back(interval.low), back(interval.high)), rel=1e-9, abs=1e-9)
    p = float(stats.ttest_rel(ys, xs).pvalue)
    assume(abs(p - 0.05) > 1e-6)
    assert (ours.is_above or ours.is_below) == (p < 0.05)


@given(values, values)
def test_settings_without_two_seeds_in_common_are_compared_as_welchs_test_does(
    one: list[float], other: list[float]
) -> None:
    assume(len(set(one)) > 1 and len(set(other)) > 1)
    apart = len(one) - 1  # the last seed of one is the first of the other
    ours = between(by_seed(one), by_seed(other, apart), ratio=True)
    assume(len(ours.seeds) == 1)
    theirs = stats.ttest_ind(other, one, equal_var=False).confidence_interval(0.95)
    assert (ours.kind, ours.is_ratio) == ("welch", False)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-9)


def test_what_a_seed_does_to_all_settings_does_not_hide_which_is_quicker() -> None:
    near, far = between(SINGLE, TENSOR, ratio=True), between(SINGLE, DATA_PARALLEL, ratio=True)
    assert near.is_above and far.is_above
    assert near.text(seconds, "times as long") == (
        "1.028 times as long (95 % interval 1.01 to 1.046, paired by 3 seeds)"
    )
    assert far.text(seconds, "times as long") == "1.572 times as long (95 % interval 1.521 to 1.625, paired by 3 seeds)"
    assert between(TENSOR, SINGLE, ratio=True).is_below
    moved = {seed + 3: value for seed, value in DATA_PARALLEL.items()}
    welch = between(SINGLE, moved)  # as if the seeds were others
    assert not welch.is_above and welch.kind == "welch"


def test_pairs_are_of_the_seeds_that_both_have_a_value_with() -> None:
    more = {3: 1.0, **TENSOR, 4: None}
    assert between(SINGLE, more, ratio=True) == between(SINGLE, TENSOR, ratio=True)
    assert between({**SINGLE, 4: 2.0}, more, ratio=True).seeds == (0, 1, 2)
    assert between({**SINGLE, 1: None}, more, ratio=True).seeds == (0, 2)


def test_one_seed_in_common_gives_its_ratio_and_no_interval() -> None:
    gap = between(SINGLE, {0: 29.3}, ratio=True)
    assert gap.text(seconds, "times as long") == "2 times as long (no interval: 1 seed in common)"
    assert not gap.is_above and "no interval" in gap.rule and gap.raw()["interval"] is None
    assert between({0: 1.0}, {1: 3.0}).text(seconds) == "2 s more (no interval: no seeds in common)"


def test_the_text_says_which_interval_it_is_and_with_which_sign() -> None:
    assert between({0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0}).text(seconds) == (
        "2 s less (95 % interval -2 s to -2 s, paired by 2 seeds)"
    )
    said = between({0: 1.0, 1: 1.0}, {2: 3.0, 3: 3.0}).text(seconds)
    assert said == "2 s more (95 % interval 2 s to 2 s, Welch's and not paired: no seeds in common)"
    assert between(SINGLE, SINGLE, ratio=True).rule == "the paired 95 % interval of the ratio by seed includes 1"
    assert between(SINGLE, SINGLE).rule == "the paired 95 % interval of the difference by seed includes 0"


def test_programs_are_told_which_interval_it_is() -> None:
    raw = between(SINGLE, TENSOR, ratio=True).raw()
    assert raw.pop("low") < raw.pop("estimate") < raw.pop("high")
    assert raw == {"interval": "paired", "of": "ratio", "common_seeds": [0, 1, 2], "told_apart": True}
    assert between(SINGLE, {5: 1.0, 6: 2.0}).raw()["interval"] == "welch"


def test_what_is_no_positive_number_is_compared_by_differences() -> None:
    assert not between({0: 0.0, 1: 1.0}, {0: 1.0, 1: 2.5}, ratio=True).is_ratio
    assert between({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, ratio=True).estimate == 1.0


def test_times_rates_and_bytes_are_compared_by_ratios_and_accuracies_by_differences() -> None:
    assert set(RATIOS) < BY_KEY.keys()
    assert all(map(is_ratio, ("time_to_accuracy", "time_to_accuracy_s", "throughput", "bytes", "dollars")))
    assert not any(map(is_ratio, ("accuracy", "r2", "loss", "evaluation/mine")))
