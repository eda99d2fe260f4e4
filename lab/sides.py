"""One side of the page: its overrides, what the lab allows, and its plan or the words with which it is refused."""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.errors import ConfigError
from ..engine.base.failures import ending_of, named
from ..engine.config.compose import compose
from ..engine.config.repeat import allowing, quoted
from ..tracking.columns import human_bytes
from .catalogue import FIXED, Catalogue, LabField

if TYPE_CHECKING:
    from ..engine.planning.planned import Plan

WORKERS, STEPS = 64, 2000  # at most, so that a run ends in seconds
SET = ("hardware=virtual", "tracking=none")
START = ("hardware.workers=4", "steps=200")
EXAMPLE = ("stragglers=one_slow",)  # of both sides, where a person gives no overrides
OF_SECOND = "sync=asp"  # of side B then
LONGEST = 1000  # characters of a value
BUG = 1
_KEY = re.compile(r"([A-Za-z_][\w./]*)(?:=|: )")


@dataclass(frozen=True)
class Side:
    """The changes of a person: choices by group, and values by key, as they are typed."""

    choices: dict[str, str]
    values: dict[str, str]

    @classmethod
    def parse(cls, plain: Any) -> "Side":
        """Raises ValueError."""
        if not isinstance(plain, dict) or set(plain) != {"choices", "values"}:
            raise ValueError("a side has choices and values")
        for told in plain.values():
            if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
                raise ValueError("choices and values are texts by key")
        return cls(dict(plain["choices"]), dict(plain["values"]))


@dataclass(frozen=True)
class Accepted:
    """A side that may run, with the user's folder of choices and packages of classes."""

    overrides: tuple[str, ...]
    workers: int
    steps: int
    memory: int  # estimated bytes of its process
    config_dir: Path | None = None
    allowed: tuple[str, ...] = ()


class Sides:
    """Plans sides. `given`: overrides of both, from the command line. Raises `ConfigError` where the lab sets them."""

    def __init__(self, catalogue: Catalogue, given: Sequence[str]) -> None:
        self.catalogue = catalogue
        for text in given:
            key = key_of(text)
            if key in FIXED or key.partition(".")[0] in ("tracking", "launcher"):
                why = FIXED[key if key in FIXED else key.partition(".")[0]]
                raise ConfigError(f"{text}: {why}. Leave it out, or choose paceline train.")
        both = merged([*SET, *START], given or EXAMPLE)
        self.start = (both, both if given else [*both, OF_SECOND])
        compose(both, catalogue.config_dir)  # refuses a misspelt key before there is a page
        self._mutex = threading.Lock()  # Hydra's global state is one

    def looked_at(self, place: int, side: Side) -> tuple[dict[str, Any], Accepted | None]:
        """Returns a side's fields, command and plan or refusal, for the page, and the run if there may be one.

        Raises ValueError for a choice or a key that the page does not offer.
        """
        with self._mutex:
            return self._looked_at(place, side)

    def _looked_at(self, place: int, side: Side) -> tuple[dict[str, Any], Accepted | None]:
        for key, name in side.choices.items():
            if name not in self.catalogue.groups.get(key, ()) and f"{key}={name}" not in self.start[place]:
                raise UnknownKeyError(f"{key}={name}: is not offered")
        base = merged(self.start[place], _typed(side.choices))
        told: dict[str, Any] = {"fields": {}, "command": "", "notes": [], "figures": [], "refusal": None}
        told["choices"] = self.catalogue.defaults | {
            key: value for key, value in _values(base).items() if key in self.catalogue.groups
        }
        accepted = None
        known = dict(told["choices"])
        try:
            usual = set(_typed(self.catalogue.defaults))
            for section, fields in self._fields(told["choices"]):
                now = _values(base) | side.values
                told["fields"][section] = [field.plain(now.get(field.key, field.usual)) for field in fields]
                known |= {field.key: now.get(field.key, field.usual) for field in fields}
                usual |= {f"{field.key}={field.usual}" for field in fields}
            overrides = [
                text for text in merged(base, _typed(side.values)) if text not in usual or text in self.start[place]
            ]
            told["command"] = quoted(["paceline", "train", *self._own(), *overrides])
            _check_keys(side, known)
            _check_lengths(side)
            plan = _planned(overrides, self.catalogue)
            told["notes"], told["figures"] = list(plan.notes), _figures(plan)
            accepted = _accepted(overrides, plan, self.catalogue)
        except UnknownKeyError:
            raise
        except Exception as error:
            told["refusal"] = _refusal(error, known)
        return told, accepted

    def _own(self) -> list[str]:
        """Returns the words of a command that name the user's choices and classes."""
        folder = self.catalogue.config_dir
        return [*(() if folder is None else ("--config-dir", str(folder))), *allowing(self.catalogue.allowed)]

    def _fields(self, chosen: dict[str, str]) -> Iterable[tuple[str, list[LabField]]]:
        yield "", self.catalogue.fields_of_run()
        for group, name in chosen.items():
            if name in self.catalogue.groups[group]:  # else the command line composed it: sync=sparta+diloco
                yield group, self.catalogue.fields(group, name)


def _check_keys(side: Side, known: Mapping[str, str]) -> None:
    for key in side.values:
        if key not in known:
            raise UnknownKeyError(f"{key}: is not offered")


def _check_lengths(side: Side) -> None:
    for key, text in side.values.items():
        if len(text) > LONGEST:
            raise ConfigError(f"{key}: the lab takes at most {LONGEST:,} characters. Choose fewer, or run the command.")


def _typed(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _values(overrides: Iterable[str]) -> dict[str, str]:
    return {key_of(text): text.partition("=")[2] for text in overrides}


class UnknownKeyError(ValueError):
    """A request names what the page does not offer."""


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def merged(told: Iterable[str], given: Iterable[str]) -> list[str]:
    """Returns `told` and then `given`. Another choice of a group drops the knobs of the former one."""
    given = list(given)
    keys = {key_of(text) for text in given}
    prefixes = tuple(f"{key.replace('/', '.')}." for key in keys)
    kept = [text for text in told if key_of(text) not in keys and not key_of(text).startswith(prefixes)]
    return [*kept, *given]


def lack_of_memory(runs: Sequence[Accepted]) -> str:
    """Returns the reason why the runs cannot go on at once; "" where this host has the memory of all."""
    from ..comm.shared_memory import available

    needed, there = sum(run.memory for run in runs), available()
    if needed <= there:
        return ""
    return (
        f"Both runs are estimated to take {human_bytes(needed)}, and this host has {human_bytes(there)} free. Choose "
        "fewer workers or smaller models, or run the commands one after the other."
    )


def _planned(overrides: list[str], catalogue: Catalogue) -> "Plan":
    """Returns the plan of a run that `paceline train` takes and the lab allows. Raises as `paceline train` does."""
    from ..engine import prepare
    from ..engine.planning.process_memory import check_process

    prepared = prepare(overrides, catalogue.config_dir, catalogue.allowed)
    plan = prepared.plan()
    check_process(plan)
    if (absent := prepared.absent()) is not None:
        raise ConfigError(f"{absent} The lab downloads nothing: run the command, or choose data=digits.")
    workers, steps = plan.layout.workers, plan.steps
    if workers > WORKERS:
        raise ConfigError(
            f"hardware.workers={workers}: the lab runs at most {WORKERS}. Choose fewer, or run the command."
        )
    if steps is None or steps > STEPS:
        made = "as many as the data give" if steps is None else f"{steps:,}"
        raise ConfigError(
            f"steps: the run makes {made}, and the lab at most {STEPS:,}. Choose steps=200, or run the command."
        )
    return plan


def _accepted(overrides: Sequence[str], plan: "Plan", catalogue: Catalogue) -> Accepted:
    from ..engine.planning.process_memory import process_memory

    memory, steps = process_memory(plan), plan.steps
    assert memory is not None and steps is not None, "a virtual cluster is one process, and _planned checks the steps"
    own = catalogue.config_dir, catalogue.allowed
    return Accepted(tuple(overrides), plan.layout.workers, steps, memory, *own)


def _figures(plan: "Plan") -> list[list[str]]:
    sent, servers = plan.bytes_per_step(), plan.layout.servers * plan.layout.parts
    beside = f", and {servers} {'server' if servers == 1 else 'servers'}" if servers else ""
    return [
        ["workers", f"{plan.layout.workers:,}{beside}"],
        ["steps", f"{plan.steps:,}"],
        ["sent by a worker in a step", human_bytes(sent) if sent is not None else f"varies ({plan.varies})"],
        ["held by the largest worker", human_bytes(plan.largest())],
    ]


def _refusal(error: Exception, known: Mapping[str, str]) -> dict[str, Any]:
    """Returns the exit status and the words of `paceline train`, and the keys of the page that they are about.

    Args:
        error: of a plan.
        known: the values of the keys that the page offers.
    """
    ending = ending_of(error)
    status, words = ending[:2] if ending else (BUG, f"this is a mistake in paceline: {named(error)}")
    starts = [found[1] for line in words.splitlines() if (found := _KEY.match(line))]
    named_by = [[key for key in known if f"{start}.".startswith(f"{key}.")] for start in starts]
    keys = list(dict.fromkeys(max(each, key=len) for each in named_by if each))
    if not keys:  # a key that the lab sets: the others that the words name
        keys = [key for key, value in known.items() if f"{key}={value}" in words]
    return {"status": status, "words": words, "keys": keys}
