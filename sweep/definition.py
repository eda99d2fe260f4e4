"""The search space of a sweep: from overrides in Hydra's sweep grammar, or from a file in W&B's schema (schema.py)."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..conf.errors import ConfigError
from ..engine.config.swept import sweep_values
from ..engine.config.typed import tells_secret
from ..tracking.columns import METRICS
from ..tracking.redact import HIDDEN, is_secret
from ..tracking.text import did_you_mean

Method = Literal["grid", "random", "bayes"]
METHODS = ("grid", "random", "bayes")
PRUNED_BY = (*METRICS, "loss")
WAY = "way"  # the parameter of a sweep of listed configurations
MOST = 100_000  # points of a grid
MOST_RUNS = 1_000_000  # of a grid with its seeds


@dataclass(frozen=True)
class Values:
    """Some values, each as an override would write it."""

    texts: tuple[str, ...]

    @property
    def finite(self) -> bool:
        return True

    def count(self) -> int:
        return len(self.texts)

    def all(self) -> Sequence[str]:
        return self.texts


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included, `step` apart if given; `log`: evenly by their logarithm."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int | None)

    @property
    def finite(self) -> bool:
        return self.integer or self.step is not None

    def count(self) -> int:
        """Returns the number of values of a finite range."""
        if self.integer:
            return int(self.high - self.low) // int(self.step or 1) + 1
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def all(self) -> Sequence[float]:
        return [self._value(i) for i in range(self.count())]

    def last(self) -> float:
        """The largest: `high`, or the last step before it."""
        return self.high if self.step is None else self._value(self.count() - 1)

    def _value(self, i: int) -> float:
        step = self.step or 1
        return self.low + i * int(step) if self.integer else float(f"{self.low + i * step:.12g}")


@dataclass(frozen=True)
class Paired:
    """Values that go with those of another parameter, `leader`, one with each, in order."""

    leader: str
    texts: tuple[str, ...]

    @property
    def finite(self) -> bool:
        return True

    def count(self) -> int:
        return 1  # for each value of its leader

    def all(self) -> list[str]:
        return list(self.texts)


Space = Values | Range | Paired
Condition = tuple[tuple[str, tuple[str, ...]], ...]  # keys, each with the values that it may have
Point = dict[str, str | float]  # what one trial sets, by key


@dataclass(frozen=True)
class EarlyTermination:
    """Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"):
    a trial goes on after min_iter, eta min_iter, ... evaluations if it is among the best 1/eta that got there. With
    `max_iter`, Hyperband (Li et al. 2018, JMLR): trials are dealt to several such brackets, each beginning later.
    """

    min_iter: int
    eta: int
    max_iter: int | None = None


@dataclass(frozen=True)
class Definition:
    """A whole sweep. `fixed`: overrides of every run. Two sweeps are the same if these are equal."""

    method: Method
    parameters: dict[str, Space]
    fixed: tuple[str, ...] = ()
    metric: str = "accuracy"
    maximize: bool = True
    early: EarlyTermination | None = None
    trials: int | None = None  # at most
    seeds: int | None = None  # each point is run with so many; None: with that of the configuration
    config_dir: str | None = None
    allow_modules: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()  # that compare draws of it, as figures/request.py reads them
    ways: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what each value of the parameter `way` stands for: overrides
    when: tuple[tuple[str, Condition], ...] = ()  # parameters that are swept only where others have these values

    @property
    def finite(self) -> bool:
        return all(space.finite for space in self.parameters.values())

    def size(self) -> int:
        """Points of a finite search, counted up to one more than `MOST` where some depend on others."""
        if self.when:
            return sum(1 for _ in itertools.islice(self.points(), MOST + 1))
        return math.prod(space.count() for space in self.parameters.values())

    def points(self) -> Iterator[Point]:
        """Every point of a finite search, the last parameter varying first."""
        if self.when or any(isinstance(space, Paired) for space in self.parameters.values()):
            yield from self._points({}, list(self.parameters))
            return
        for values in itertools.product(*(texts_or_numbers(space) for space in self.parameters.values())):
            yield dict(zip(self.parameters, values, strict=True))

    def _points(self, point: Point, keys: list[str]) -> Iterator[Point]:
        if not keys:
            yield point
            return
        key, *rest = keys
        space = self.parameters[key]
        if isinstance(space, Paired):
            yield from self._points(self.settled(point), rest)
        elif self.is_active(key, point):
            for value in texts_or_numbers(space):
                yield from self._points(point | {key: value}, rest)
        else:
            yield from self._points(point, rest)

    def is_active(self, key: str, point: Point) -> bool:
        """Returns whether the point has this parameter, by the values of those before it."""
        conditions = dict(self.when).get(key, ())
        fixed = {text.partition("=")[0]: text.partition("=")[2] for text in self.fixed} if conditions else {}
        return all(str(point.get(other, fixed.get(other))) in texts for other, texts in conditions)

    def settled(self, point: Point) -> Point:
        """The point without parameters that are not swept there, and with those that are paired with others."""
        found: Point = {}
        for key, space in self.parameters.items():
            if isinstance(space, Paired):
                leader = self.parameters[space.leader]
                if space.leader in found and isinstance(leader, Values):
                    found[key] = space.texts[leader.texts.index(str(found[space.leader]))]
            elif key in point and self.is_active(key, found):
                found[key] = point[key]
        return found

    def each_seed(self) -> tuple[int | None, ...]:
        """The seeds that a point is run with, from the fixed one on."""
        if self.seeds is None:
            return (None,)
        given = [text.removeprefix("seed=") for text in self.fixed if text.startswith("seed=")]
        first = int(given[-1]) if given and given[-1].isdigit() else 0
        return tuple(range(first, first + self.seeds))

    def overrides(self, point: Point, seed: int | None) -> list[str]:
        listed = dict(self.ways)
        chosen = [*listed.get(str(point.get(WAY)), ())] if listed else []
        chosen += [f"{key}={value}" for key, value in point.items() if not (listed and key == WAY)]
        if seed is None:
            return [*self.fixed, *chosen]
        return [*(text for text in self.fixed if not text.startswith("seed=")), *chosen, f"seed={seed}"]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values to store and to compare; `from_dict` reads them."""
        spaces = {
            key: {"values": list(space.texts)}
            if isinstance(space, Values)
            else {"paired": space.leader, "values": list(space.texts)}
            if isinstance(space, Paired)
            else {"min": space.low, "max": space.high, "q": space.step, "log": space.log}
            for key, space in self.parameters.items()
        }
        return {
            "method": self.method,
            "parameters": spaces,
            "fixed": list(self.fixed),
            "metric": {"name": self.metric, "goal": "maximize" if self.maximize else "minimize"},
            "early_terminate": None if self.early is None else asdict(self.early),
            "trials": self.trials,
            "seeds": self.seeds,
            "config_dir": self.config_dir,
            "allow_modules": list(self.allow_modules),
            **({"figures": list(self.figures)} if self.figures else {}),
            **(
                {"when": {key: {other: list(each) for other, each in so} for key, so in self.when}} if self.when else {}
            ),
            **({"ways": {way: list(texts) for way, texts in self.ways}} if self.ways else {}),
        }


def from_dict(plain: dict[str, Any]) -> Definition:
    """Reads the values that `as_dict` returned. Raises `ConfigError`."""
    try:
        spaces: dict[str, Space] = {
            key: Paired(space["paired"], tuple(space["values"]))
            if "paired" in space
            else Values(tuple(space["values"]))
            if "values" in space
            else Range(space["min"], space["max"], space["q"], space["log"])
            for key, space in plain["parameters"].items()
        }
        early = plain["early_terminate"]
        return Definition(
            plain["method"],
            spaces,
            tuple(plain["fixed"]),
            plain["metric"]["name"],
            plain["metric"]["goal"] == "maximize",
            EarlyTermination(**early) if early else None,
            _count(plain, "trials"),
            _count(plain, "seeds"),
            plain["config_dir"],
            tuple(plain["allow_modules"]),
            tuple(plain.get("figures", ())),
            tuple((way, tuple(texts)) for way, texts in plain.get("ways", {}).items()),
            tuple(
                (key, tuple((other, tuple(texts)) for other, texts in so.items()))
                for key, so in plain.get("when", {}).items()
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the sweep's sweep.yaml is not one of ours: {error!r}") from None


def _count(plain: dict[str, Any], key: str) -> int | None:
    """Reads a number from 1 on, or None. Raises `TypeError`."""
    found = plain[key]
    if found is not None and (type(found) is not int or found < 1):
        raise TypeError(f"{key}={found!r}")
    return found


def listed(
    ways: Mapping[str, Sequence[str]], fixed: Sequence[str], metric: str, seeds: int, **changes: Any
) -> Definition:
    """A sweep of these configurations, by name, each `fixed` and its own overrides. Raises `ConfigError`."""
    names = tuple(ways)
    own = tuple((name, tuple(texts)) for name, texts in ways.items())
    values: dict[str, Space] = {WAY: Values(names)}
    definition = Definition(
        "grid", values, tuple(fixed), metric, larger_is_better(metric), seeds=seeds, ways=own, **changes
    )
    check(definition)
    return definition


def larger_is_better(metric: str) -> bool:
    """Returns the direction of the comparison's column. Raises `ConfigError` if no column has the name."""
    from ..tracking.columns import BY_KEY, known

    column = known(metric)
    if column is None:
        near = did_you_mean(metric, BY_KEY, 0.7)
        hint = f"; {near} Of a number of your own" if near else ":"
        raise ConfigError(f"--metric {metric}: is no column of the table{hint} say --minimize or --maximize")
    return column.larger_first


# -- Hydra's grammar


def ranged(key: str, low: float, high: float, step: float | None, log: bool) -> Range:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"{key}: its bounds must be finite, are {low} and {high}")
    if low >= high:
        raise ConfigError(f"{key}: its bounds must have min < max, are {low} and {high}")
    if log and low <= 0:
        raise ConfigError(f"{key}: a logarithmic scale begins above 0, not at {low}")
    return Range(low, high, step, log)


def check(definition: Definition) -> None:
    """Checks that its parts go together. Raises `ConfigError`."""
    _check_overrides(definition)
    _check_dependent(definition)
    if definition.config_dir is not None and not Path(definition.config_dir).is_dir():
        raise ConfigError(f"--config-dir {definition.config_dir}: there is no such directory")
    if definition.seeds is not None and "seed" in definition.parameters:
        raise ConfigError("--seeds: seed is swept already")
    if definition.method != "grid" and definition.trials is None:
        raise ConfigError(
            f"method={definition.method}: has no end by itself; say how many: --trials N, or run_cap in the file"
        )
    if definition.early is not None and definition.metric not in PRUNED_BY:
        raise ConfigError(
            f"early_terminate: goes by what is measured while training, {' or '.join(PRUNED_BY)}, "
            f"not by metric {definition.metric}"
        )
    endless = [key for key, space in definition.parameters.items() if not space.finite]
    if definition.method == "grid" and endless:
        raise ConfigError(
            f"method=grid: {endless[0]} has no end of values; give values, integer bounds or q, or choose "
            "method=random or bayes"
        )
    _check_metric(definition.metric)
    if definition.method == "grid" and definition.size() > MOST:
        raise ConfigError(
            f"method=grid: makes {definition.size():,} points, and {MOST:,} are the most; fewer values, or "
            "method=random with --trials N"
        )
    runs = definition.size() * (definition.seeds or 1) if definition.method == "grid" else 0
    if runs > MOST_RUNS:
        raise ConfigError(f"--seeds {definition.seeds}: makes {runs:,} runs, and {MOST_RUNS:,} are the most")


def _check_dependent(definition: Definition) -> None:
    """Checks that what parameters depend on comes before them. Raises `ConfigError`."""
    before: dict[str, Space] = {}
    fixed = {text.partition("=")[0] for text in definition.fixed}
    conditions = dict(definition.when)
    for key, space in definition.parameters.items():
        if isinstance(space, Paired):
            leader = before.get(space.leader)
            if not isinstance(leader, Values) or len(leader.texts) != len(space.texts):
                raise ConfigError(
                    f"{key}: its values go with those of {space.leader}, which has others now. Choose both anew: "
                    f"'zip({space.leader}=A,B; {key}=C,D)'"
                )
        for other, texts in conditions.get(key, ()):
            there = before.get(other)
            if other not in fixed and not isinstance(there, Values | Paired):
                raise ConfigError(
                    f"parameters.{key}.when: {other} must be a parameter with values that stands before {key}. "
                    "Choose another order, or another condition."
                )
            lacking = [text for text in texts if there is not None and text not in texts_of(there)]
            if lacking:
                raise ConfigError(
                    f"parameters.{key}.when.{other}={lacking[0]}: {other} is never that. "
                    f"Choose {' or '.join(texts_of(there)[:4]) if there else ''}."
                )
        before[key] = space


def paired(group: Mapping[str, Sequence[str]]) -> dict[str, Space]:
    """Parameters that vary together: with the first value of one goes the first of each other.

    Raises `ConfigError`.
    """
    keys, lengths = ", ".join(group), {len(texts) for texts in group.values()}
    if len(group) < 2 or lengths in ({0}, {1}):
        raise ConfigError(f"zip({keys}): takes two keys or more, each with two values or more")
    if len(lengths) > 1:
        counts = ", ".join(f"{key} has {len(texts)}" for key, texts in group.items())
        raise ConfigError(f"zip({keys}): each key must have as many values as the others; {counts}")
    leader = next((key for key, texts in group.items() if len(set(texts)) == len(texts)), None)
    if leader is None:
        raise ConfigError(f"zip({keys}): one of the keys must have no value twice, so that each pair can be told apart")
    followers: dict[str, Space] = {key: Paired(leader, tuple(texts)) for key, texts in group.items() if key != leader}
    return {leader: Values(tuple(group[leader])), **followers}


def _check_metric(metric: str) -> None:
    from ..tracking.columns import known
    from ..tracking.derived import OF_RECORDS

    column = known(metric)
    if not metric or (column is not None and not column.is_number):
        raise ConfigError(f"metric={metric}: must be a number of the table, such as accuracy or time_to_accuracy")
    if column is not None and column.key in OF_RECORDS:
        raise ConfigError(
            f"metric={metric}: is told by a run's records alone; a sweep goes by what its summary has, such as "
            "time_to_accuracy"
        )


def _check_overrides(definition: Definition) -> None:
    """Checks the overrides of each run: one value for each key that can be written, and no secret. Raises
    `ConfigError`.
    """
    for text in definition.fixed:
        key, swept = sweep_values(text)
        if swept is not None:
            raise ConfigError(f"{text}: has several values; in a file, they stand under parameters.{key}.values")
        seed = text.removeprefix("seed=")
        if definition.seeds is not None and key == "seed" and not seed.isdecimal():
            raise ConfigError(f"{text}: with --seeds, seed is the first of them, a whole number from 0 on")
    for key in definition.parameters:
        if not _is_key(key):
            raise ConfigError(f"{key}: is no key to sweep; write one such as sync or optimizer.lr")
    values = [f"{key}={text}" for key, space in definition.parameters.items() if key != WAY for text in texts_of(space)]
    for text in (*definition.fixed, *values, *(text for _, way in definition.ways for text in way)):
        if _may_be_secret(text) and tells_secret(text):
            raise ConfigError(
                f"{sweep_values(text)[0]}={HIDDEN}: a sweep stores its definition, but no secret. Have your class read "
                "it from an environment variable"
            )


def texts_or_numbers(space: Space) -> Sequence[str | float]:
    return space.all() if isinstance(space, Range) else space.texts


def texts_of(space: Space) -> tuple[str, ...]:
    return () if isinstance(space, Range) else space.texts


def _may_be_secret(text: str) -> bool:
    """Spares a long list of plain values from being parsed."""
    key, _, value = text.partition("=")
    return is_secret(key) or "{" in value or "://" in value


def _is_key(text: str) -> bool:
    try:
        return text[:1] not in ("", "~") and sweep_values(f"{text}=0")[0] == text
    except ConfigError:
        return False
