"""A race: the ways that are asked for train for real until one is told apart from the others.

Successive halving (Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS) whose resource is the seeds: in each round every way that is left trains once more, with a seed
that is new, and the half that is slower to the target, in the mean of its seeds, is left out; two stay to the end. Each
round is a sweep of listed configurations, with all that sweeps have.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..conf.errors import ConfigError
from ..sweep.definition import Definition, listed
from ..tracking.ranking import RankedSetting, first, order
from .candidate import Candidate, Predicted
from .commands import overrides_of
from .question import Question

METRIC, STEP = "time_to_accuracy", "step_ms"
DISTURBED = "disturbed"  # 1 where other programs on the machine disturbed the run
FINALISTS = 2
MOST_WAYS, MOST_SEEDS = 64, 20

Measured = Mapping[
    str, Mapping[str, float | None]
]  # by way: METRIC and STEP of one run; a way that failed is not there
RunRound = Callable[[str, Definition], Measured]


class RaceFailedError(RuntimeError):
    """Every run of a race failed."""

    exit_code = 4


@dataclass(frozen=True)
class RaceEntry:
    """`predicted`: seconds of a step; None: not predicted."""

    name: str
    overrides: tuple[str, ...]
    predicted: float | None


@dataclass(frozen=True)
class Raced:
    """`settings`: of each way the time to the target with each seed; `steps`: of each the mean step, in seconds."""

    ways: list[RaceEntry]
    settings: list[RankedSetting]
    steps: dict[str, float]
    rounds: list[list[str]]  # who took part
    failed: frozenset[str]  # whose run failed
    disturbed: frozenset[str] = frozenset()  # whose times other programs on the machine disturbed

    @property
    def leading(self) -> list[RankedSetting]:
        """The winner, and all that it cannot be told apart from among those that came to the last round."""
        return first([each for each in self.settings if each.label in self.rounds[-1]], ratio=True)

    @property
    def misjudged(self) -> list[tuple[str, str]]:
        """Pairs of which the first was predicted to take the shorter step, and took the longer one."""
        known = [way for way in self.ways if way.predicted is not None and way.name in self.steps]
        return [
            (one.name, other.name)
            for one in known
            for other in known
            if (one.predicted or 0) < (other.predicted or 0) and self.steps[one.name] > self.steps[other.name]
        ]


def of_rows(question: Question, rows: Sequence[Predicted], most: int) -> list[RaceEntry]:
    """The first so many, named by what tells them apart."""
    return [
        RaceEntry(_name(row.candidate), tuple(overrides_of(question, row.candidate)), row.seconds)
        for row in rows[:most]
    ]


def of_words(question: Question, words: Sequence[str]) -> list[RaceEntry]:
    """`sync=asp`, or several overrides with spaces between them. Raises `ConfigError`."""
    from ..engine.config.compose import compose

    found = []
    for text in words:
        own = text.split()
        compose([*question.overrides, *own], question.config_dir)
        found.append(RaceEntry("_".join(own), (*question.overrides, *own), None))
    return found


def _name(candidate: Candidate) -> str:
    words = [candidate.family, candidate.group] if candidate.group != candidate.family else [candidate.family]
    return "_".join("_".join(words).split())


def round_name(name: str, number: int) -> str:
    """Returns the name of a round's sweep. Rounds count from 1."""
    return f"{name}-round{number}"


def check_asked(question: Question, target: float | None, seeds: int) -> None:
    """Checks the target and the number of seeds, before anything is planned. Raises `ConfigError`."""
    if not 2 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: a race has 2 to {MOST_SEEDS}; with one, nothing could be told apart")
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target {target:g}: is an accuracy above 0 and at most 1")
    typed = question.given.get("target_accuracy")
    if target is not None and typed is not None:
        raise ConfigError(f"--target {target:g}: target_accuracy={typed} is typed, too; leave one of them out")


def race(
    question: Question, name: str, ways: Sequence[RaceEntry], target: float | None, seeds: int, run: RunRound
) -> Raced:
    """`run` is given each round's name and definition. Raises `ConfigError`."""
    check_asked(question, target, seeds)
    names = [way.name for way in ways]
    if not 2 <= len(set(names)) == len(names) <= MOST_WAYS:
        raise ConfigError(f"--race: takes 2 to {MOST_WAYS} different configurations; these are {', '.join(names)}")
    aim = [] if target is None else [f"target_accuracy={target:g}"]
    left = list(ways)
    times: dict[str, dict[int, float | None]] = {name: {} for name in names}
    steps: dict[str, list[float]] = {name: [] for name in names}
    rounds: list[list[str]] = []
    failed: set[str] = set()
    disturbed: set[str] = set()
    for i in range(seeds):
        seed = question.experiment.seed + i
        definition = listed(
            {way.name: way.overrides for way in left},
            (*aim, f"seed={seed}"),
            METRIC,
            1,
            config_dir=None if question.config_dir is None else str(question.config_dir.absolute()),
            allow_modules=question.allowed,
        )
        measured = run(round_name(name, i + 1), definition)
        rounds.append([way.name for way in left])
        failed |= {way.name for way in left} - set(measured)
        disturbed |= {each for each, told in measured.items() if told.get(DISTURBED)}
        for way in left:
            told = measured.get(way.name, {})
            times[way.name][seed] = _finite(told.get(METRIC))
            step = _finite(told.get(STEP))
            steps[way.name] += [] if step is None else [step]
        settings = [RankedSetting(way.name, times[way.name]) for way in left]
        kept = [each.label for each in order(settings)][: max(FINALISTS, -(-len(left) // 2))]
        if i + 1 < seeds:
            left = [way for way in left if way.name in kept]
        if len(left) < FINALISTS:
            break
    return Raced(
        list(ways),
        [RankedSetting(label, times[label]) for label in names],
        {label: sum(each) / len(each) / 1e3 for label, each in steps.items() if each},
        rounds,
        frozenset(failed),
        frozenset(disturbed),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
