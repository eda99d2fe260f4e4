"""Who is first, as far as seeds can tell: against scipy's Welch test, and over thousands of draws."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from paceline.tracking.ranking import Setting, first, order, told_apart

values = st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=6)


def setting(label: str, *seeds: float | None) -> Setting:
    return Setting(label, tuple(value for value in seeds if value is not None), len(seeds))


@given(values, values)
def test_two_means_are_told_apart_as_welchs_test_does_at_5_percent(one: list[float], other: list[float]) -> None:
    assume(len(set(one)) > 1 and len(set(other)) > 1)  # scipy warns of the others
    p = float(stats.ttest_ind(one, other, equal_var=False).pvalue)
    assume(abs(p - 0.05) > 1e-6)
    assert told_apart(one, other) == (p < 0.05)


def test_one_seed_tells_nothing_apart_and_equal_seeds_tell_every_difference() -> None:
    assert not told_apart([1.0], [9.0]) and not told_apart([1.0], [8.9, 9.0, 9.1])
    assert told_apart([1.0, 1.0], [2.0, 2.0]) and not told_apart([1.0, 1.0], [1.0, 1.0])


def test_three_seeds_name_a_winner_among_equals_in_less_than_5_percent_of_sweeps() -> None:
    """However many settings there are: the best has to be told apart from the next one, too."""
    draw = random.Random(3)
    for settings in (2, 6):
        wrong = 0
        for _ in range(1000):
            every = [setting(str(i), *(draw.gauss(1.0, 0.2) for _ in range(3))) for i in range(settings)]
            wrong += len(first(every)) == 1
        assert wrong < 1000 * 0.05 + 2 * (1000 * 0.05 * 0.95) ** 0.5


def test_a_clear_winner_is_named_and_a_near_one_stands_beside_those_it_may_not_beat() -> None:
    quick, near, slow = (
        setting("quick", 1.0, 1.1, 0.9),
        setting("near", 1.05, 1.2, 0.95),
        setting("slow", 5.0, 5.1, 4.9),
    )
    assert [each.label for each in first([slow, quick])] == ["quick"]
    assert [each.label for each in first([slow, near, quick])] == ["quick", "near"]
    assert [each.label for each in first([slow, near, quick], larger=True)] == ["slow"]


def test_the_luckiest_seed_is_not_first_and_neither_is_a_setting_of_which_one_seed_has_no_value() -> None:
    lucky, partly, steady = setting("lucky", 0.1), setting("partly", 0.1, None, 0.2), setting("steady", 1.0, 1.1)
    assert [each.label for each in first([lucky, partly, steady])] == ["steady"]
    assert [each.label for each in order([lucky, partly, steady])] == ["lucky", "steady"]
    assert first([lucky, setting("other", 0.2)]) == []


@pytest.mark.parametrize(("seeds", "text"), [((2.0,), "2.0"), ((1.0, 3.0), "2.0 ± 12.7"), ((1.0, 1.0), "1.0")])
def test_a_mean_has_its_interval_beside_it(seeds: tuple[float, ...], text: str) -> None:
    assert setting("any", *seeds).text("{:.1f}".format) == text
