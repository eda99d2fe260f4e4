"""A race: the slower half is left out, round by round, and what is not told apart wins nothing."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from paceline.advise.question import Question, ask
from paceline.advise.race import Measured, Raced, RaceEntry, of_words, race
from paceline.cli.advise_race import raw, told
from paceline.conf.errors import ConfigError
from paceline.sweep.define import define
from paceline.sweep.definition import Definition, from_dict, listed


@pytest.fixture(scope="module")
def question() -> Question:
    return ask(["hardware.workers=2"])


class Track:
    """Runs that were measured beforehand: seconds to the target by way, one a round."""

    def __init__(self, times: dict[str, list[float | None]], steps: dict[str, float] | None = None) -> None:
        self.times, self.steps, self.asked = times, steps or {}, list[Definition]()

    def __call__(self, name: str, definition: Definition) -> Measured:
        self.asked.append(definition)
        return {
            way: {"time_to_accuracy": self.times[way][len(self.asked) - 1], "step_ms": self.steps.get(way, 1.0)}
            for way, _ in definition.ways
        }


def raced(question: Question, track: Track, seeds: int, predicted: dict[str, float] | None = None) -> Raced:
    ways = [RaceEntry(name, (f"sync={name}",), (predicted or {}).get(name)) for name in track.times]
    return race(question, "x", ways, 0.8, seeds, track)


def test_each_round_leaves_out_the_slower_half_until_two_are_left(question: Question) -> None:
    track = Track({name: [float(i + 1), i + 1.1, i + 1.2] for i, name in enumerate("abcde")})
    found = raced(question, track, 3)
    assert found.rounds == [["a", "b", "c", "d", "e"], ["a", "b", "c"], ["a", "b"]]
    assert [definition.fixed for definition in track.asked] == [
        ("target_accuracy=0.8", f"seed={seed}") for seed in (0, 1, 2)
    ]
    assert [setting.seeds for setting in found.settings] == [3, 3, 2, 1, 1]
    assert [each.label for each in found.leading] == ["a"]


def test_who_never_reaches_the_target_is_out_and_noise_has_no_winner(question: Question) -> None:
    track = Track({"a": [1.0, 3.0, 2.0], "b": [2.0, 1.0, 3.1], "c": [None, None, None]})
    found = raced(question, track, 3)
    assert found.rounds[1:] == [["a", "b"], ["a", "b"]]
    assert {each.label for each in found.leading} == {"a", "b"}


def test_what_prediction_got_wrong_is_named(question: Question) -> None:
    track = Track({"a": [1.0, 1.1], "b": [2.0, 2.1]}, {"a": 5.0, "b": 7.0})
    assert raced(question, track, 2, {"a": 0.001, "b": 0.002}).misjudged == []
    assert raced(question, Track(track.times, track.steps), 2, {"a": 0.003, "b": 0.002}).misjudged == [("b", "a")]
    assert raced(question, Track(track.times, track.steps), 2).misjudged == []


def test_ways_are_a_sweep_of_listed_configurations() -> None:
    definition = listed({"one": ["sync=asp"], "two": ["sync=bsp", "seed=5"]}, ["epochs=2"], "time_to_accuracy", 1)
    assert not definition.maximize
    assert list(definition.points()) == [{"way": "one"}, {"way": "two"}]
    assert definition.overrides({"way": "one"}, 3) == ["epochs=2", "sync=asp", "seed=3"]
    assert from_dict(definition.as_dict()) == definition


@pytest.mark.parametrize(
    ("words", "seeds", "target", "says"),
    [
        (["sync=bsp"], 3, None, "takes 2 to 64 different"),
        (["sync=bsp", "sync=bsp"], 3, None, "takes 2 to 64 different"),
        (["sync=bsp", "sync=nothing"], 3, None, "there is no such choice"),
        (["sync=bsp", "sync=asp"], 1, None, "a race has 2 to 20"),
        (["sync=bsp", "sync=asp"], 2, 1.5, "--target 1.5"),
    ],
)
def test_a_race_of_nobody_or_to_nowhere_is_refused(
    question: Question, words: list[str], seeds: int, target: float | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        race(question, "x", of_words(question, words), target, seeds, Track({}))


def test_a_target_that_is_typed_beside_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--target 0\.9: target_accuracy=0\.5 is typed, too"):
        asked = ask(["hardware.workers=2", "target_accuracy=0.5"])
        race(asked, "x", of_words(asked, ["sync=bsp", "sync=asp"]), 0.9, 2, Track({}))


def test_the_file_of_a_race_is_a_sweep_that_takes_more_seeds_and_nothing_against_its_ways(tmp_path: Path) -> None:
    ways = {"one": ["model=mlp", "seed=5", "sync=asp"], "two": ["model=mlp", "seed=5", "sync=bsp"]}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(listed(ways, ["target_accuracy=0.9", "seed=5"], "time_to_accuracy", 1).as_dict()))
    full = define([str(file)], seeds=3)
    assert full.each_seed() == (5, 6, 7) and list(full.points()) == [{"way": "one"}, {"way": "two"}]
    assert full.overrides({"way": "two"}, 7) == ["target_accuracy=0.9", "model=mlp", "seed=5", "sync=bsp", "seed=7"]
    assert define([str(file), "target_accuracy=0.8"]).fixed == ("seed=5", "target_accuracy=0.8")
    with pytest.raises(ConfigError, match="sync=ssp: each of this sweep's configurations has its own sync"):
        define([str(file), "sync=ssp"])


def test_no_winner_is_named_within_the_noise_and_by_how_much_it_is_said(question: Question) -> None:
    close = told(raced(question, Track({"a": [1.0, 3.0, 2.0], "b": [2.0, 1.0, 3.3]}), 3), question, 0.8)
    paired = stats.ttest_rel(np.log([2.0, 1.0, 3.3]), np.log([1.0, 3.0, 2.0])).confidence_interval(0.95)
    low, high = np.exp(paired)
    expected = f"times as long (95 % interval {low:.4g} to {high:.4g}, paired by 3 seeds); more --seeds"
    assert "cannot be told apart (the paired 95 % interval of the ratio by seed includes 1)" in close
    assert expected in close and "winner: " not in close
    clear = told(raced(question, Track({"a": [1.0, 1.1, 1.2], "b": [9.0, 9.1, 9.2]}), 3), question, 0.8)
    assert "winner: a, 1.1 s" in clear and "b takes 8.295 times as long (95 % interval 6.7" in clear


# Seconds to 87 % of a wide MLP, seeds 0 to 2 (docs/log.md): a seed needs two epochs or three, whatever the way.
MEASURED = {
    "single": [14.65, 9.94, 14.51],
    "tensor_degree_2": [15.18, 10.18, 14.85],
    "naive": [22.0, None, None],
    "data_parallel": [22.97, 15.44, 23.14],
}


def test_seeds_that_need_more_epochs_hide_no_winner_since_ways_are_paired_by_them(question: Question) -> None:
    found = raced(question, Track(MEASURED), 3)
    assert found.rounds[1:] == [["single", "tensor_degree_2"]] * 2
    said = told(found, question, 0.87)
    assert (
        "winner: single, 13 s ± 6.66 s (mean and 95 % interval of the seeds); tensor_degree_2 takes 1.028 times as "
        "long (95 % interval 1.01 to 1.046, paired by 3 seeds)"
    ) in said


def test_a_way_that_was_left_out_is_compared_by_the_seeds_that_it_ran_and_programs_are_told(question: Question) -> None:
    """One way is left out in the first round, with seed 0, and one in the second."""
    times: dict[str, list[float | None]] = {"a": [1.0, 2.0, 1.0], "b": [1.1, 2.2, 1.1], "c": [1.2, 9.0, 0.1]}
    times |= {"d": [3.0, 0.1, 0.1], "e": [3.0, 0.1, 0.1]}
    found = raced(question, Track(times), 3)
    assert found.rounds == [["a", "b", "c", "d", "e"], ["a", "b", "c"], ["a", "b"]]
    gaps = {gap["setting"]: gap for gap in raw(found, "x")["compared"]}
    assert {way: (gap["interval"], gap["common_seeds"]) for way, gap in gaps.items()} == {
        "b": ("paired", [0, 1, 2]),
        "c": ("paired", [0, 1]),
        "d": (None, [0]),
        "e": (None, [0]),
    }
    assert gaps["d"]["estimate"] == pytest.approx(3.0) and gaps["d"]["low"] is None
    assert gaps["c"]["estimate"] == pytest.approx(math.sqrt(1.2 * 4.5))
    assert raw(found, "x")["winner"] == "a" and gaps["b"]["of"] == "ratio"


def test_a_way_that_failed_with_a_seed_does_not_move_the_seeds_of_the_others(question: Question) -> None:
    found = raced(question, Track({"a": [1.0, 2.0, 3.0], "b": [2.0, None, 6.0], "c": [9.0, 9.0, 9.0]}), 3)
    b = next(each for each in found.settings if each.label == "b")
    assert b.by_seed == {0: 2.0, 1: None} and found.rounds == [["a", "b", "c"], ["a", "b"]]
    assert [each.label for each in found.leading] == ["a"]


def test_who_was_left_out_after_one_seed_is_said_not_to_be_told_apart(question: Question) -> None:
    track = Track({name: [float(i + 1), i + 1.1, i + 1.2] for i, name in enumerate("abcde")})
    assert "left out after one seed, which cannot tell them apart from the first: d, e" in told(
        raced(question, track, 3), question, 0.8
    )


def test_a_race_that_other_programs_disturbed_has_no_winner(question: Question) -> None:
    track = Track({"a": [1.0, 1.1, 1.2], "b": [5.0, 5.1, 5.3]})
    assert "winner: a" in told(raced(question, track, 3), question, 0.8)

    def loud(name: str, definition: Definition) -> Measured:
        return {
            way: {**each, "disturbed": 1.0 if way == "b" and len(again.asked) == 2 else None}
            for way, each in again(name, definition).items()
        }

    again = Track(track.times)
    ways = [RaceEntry(name, (f"sync={name}",), None) for name in again.times]
    found = race(question, "x", ways, 0.8, 3, loud)
    assert found.disturbed == {"b"}
    assert "no winner: other programs disturbed the times of b." in told(found, question, 0.8)
    assert (raw(found, "x")["winner"], raw(found, "x")["disturbed"]) == (None, ["b"])
