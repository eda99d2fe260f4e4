"""A race: the slower half is left out, round by round, and what is not told apart wins nothing."""

import pytest

from paceline.advise.question import Question, ask
from paceline.advise.race import Measured, Raced, Way, of_words, race
from paceline.engine.errors import ConfigError
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
    ways = [Way(name, (f"sync={name}",), (predicted or {}).get(name)) for name in track.times]
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
