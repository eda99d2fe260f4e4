"""Who is first, as far as seeds can tell: over thousands of draws."""

import random
from collections.abc import Callable

import pytest

from paceline.tracking.ranking import RankedSetting, compared, first, gap_of, order, rule_of


def setting(label: str, *seeds: float | None) -> RankedSetting:
    return RankedSetting.of(label, enumerate(seeds))


def test_one_seed_tells_nothing_apart_and_equal_seeds_tell_every_difference() -> None:
    assert first([setting("a", 1.0), setting("b", 9.0)]) == []
    same, twice = setting("same", 1.0, 1.0), setting("twice", 2.0, 2.0)
    assert [each.label for each in first([twice, same], ratio=True)] == ["same"]
    assert [each.label for each in first([setting("again", 1.0, 1.0), same])] == ["again", "same"]


def paired(draw: random.Random, settings: int) -> list[RankedSetting]:
    """All are the same, and a seed makes all of them take longer or shorter."""
    of_seed = [draw.gauss(3.0, 0.5) for _ in range(3)]
    return [setting(str(i), *(each + draw.gauss(0.0, 0.05) for each in of_seed)) for i in range(settings)]


def apart(draw: random.Random, settings: int) -> list[RankedSetting]:
    """All are the same, and no two share a seed."""
    return [RankedSetting.of(str(i), [((i, s), draw.gauss(3.0, 0.2)) for s in range(3)]) for i in range(settings)]


@pytest.mark.parametrize("drawn", [paired, apart])
def test_three_seeds_name_a_winner_among_equals_in_less_than_5_percent_of_sweeps(
    drawn: Callable[[random.Random, int], list[RankedSetting]],
) -> None:
    """However many settings there are: the best has to be told apart from the next one, too."""
    draw = random.Random(3)
    for settings in (2, 6):
        wrong = sum(len(first(drawn(draw, settings), ratio=True)) == 1 for _ in range(1000))
        assert wrong < 1000 * 0.05 + 2 * (1000 * 0.05 * 0.95) ** 0.5


def test_a_seed_that_slows_all_settings_hides_no_winner() -> None:
    """Measured: seconds to 87 % of a wide MLP, of which one seed needs two epochs and two need three."""
    single = setting("single", 14.65, 9.94, 14.51)
    tensor = setting("tensor_degree_2", 15.18, 10.18, 14.85)
    whole = setting("data_parallel", 22.97, 15.44, 23.14)
    assert [each.label for each in first([whole, tensor, single], ratio=True)] == ["single"]
    for each in (tensor, whole):
        moved = RankedSetting.of(each.label, [(f"other {seed}", value) for seed, value in each.by_seed.items()])
        assert [s.label for s in first([single, moved], ratio=True)] == ["single", each.label]
        assert rule_of([gap_of(single, moved)]).startswith("Welch's 95 % interval of the difference includes 0")
    told = compared(single, [single, tensor, whole, setting("never", 1.0, None)], ratio=True)
    assert [(each["setting"], each["with"], each["interval"]) for each in told] == [
        ("tensor_degree_2", "single", "paired"),
        ("data_parallel", "single", "paired"),
    ]


def test_the_best_mean_of_other_seeds_is_not_first_where_the_seeds_in_common_say_otherwise() -> None:
    """`lucky` has no value of the seed that slows everything, and is the slower one with each that both have."""
    steady = setting("steady", 1.0, 2.0, 3.0, 30.0)
    lucky = setting("lucky", 1.1, 2.2, 3.3)
    assert order([steady, lucky])[0] is lucky
    assert [each.label for each in first([steady, lucky], ratio=True)] == ["steady"]


def test_a_seed_that_was_repeated_is_no_second_draw() -> None:
    again = RankedSetting.of("again", [(0, 1.0), (0, 5.0), (1, None), (1, 2.0)])
    assert (again.values, again.seeds, again.is_whole) == ((1.0,), 2, False)


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
