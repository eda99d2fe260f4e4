"""The error of a bad configuration."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import NoneType

MOST_NAMED = 4  # alternatives of a key in a message


@dataclass(frozen=True)
class Alternative:
    """Another choice of a group, or another value of a knob, with which a configuration goes.

    Args:
        key: the group or the knob, as `sync` or `sync.servers`.
        value: the choice, or the value as one would type it.
        without: typed knobs that the choice does not have.
    """

    key: str
    value: str
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Choices that do not go together.

    Args:
        key: the choice, or the key, that needs what another choice lacks, as `compress=topk`.
        reasons: a clause each.
        instead: what goes, nearest first.
    """

    key: str
    reasons: tuple[str, ...]
    instead: tuple[Alternative, ...] = ()

    def __str__(self) -> str:
        text = f"{self.key}: {'; '.join(self.reasons)}"
        if not self.instead:
            return text
        by_key: dict[str, list[Alternative]] = {}
        for each in self.instead:
            by_key.setdefault(each.key, []).append(each)
        rest = " The rest: paceline list pairs." if any(len(each) > MOST_NAMED for each in by_key.values()) else ""
        return f"{text}. Choose {', or '.join(map(_of_one_key, by_key.values()))}.{rest}"


def _of_one_key(alternatives: Sequence[Alternative]) -> str:
    """Returns `KEY=a, b or c` of a few alternatives."""
    named = alternatives[:MOST_NAMED]
    *most, last = [each.value for each in named] + ["others"] * (len(alternatives) > MOST_NAMED)
    text = f"{named[0].key}={', '.join(most)} or {last}" if most else f"{named[0].key}={last}"
    without = dict.fromkeys(knob for each in named for knob in each.without)
    return f"{text} without {' and '.join(without)}" if without else text


def of_part(text: str, path: str) -> str:
    """Returns a text in which `sync.period` is `sync.parts.diloco.period`, where `path` is `sync.parts.diloco`."""
    group = path.partition(".")[0]
    return re.sub(rf"(?<![\w./]){group}\.(?=\w)", f"{path}.", text)


class ConfigError(ValueError):
    """The configuration is wrong. The message says `KEY=VALUE: what is wrong. Choose X.`

    `about`: the groups whose choices are wrong, where an object raises it that does not know under which names it was
    chosen (`named`). `refusals`: the choices that do not go together, where that is what is wrong.
    """

    exit_code = 2
    refusals: tuple[Refusal, ...] = ()

    def __init__(self, text: str = "", about: Sequence[str] = ()) -> None:
        self.text, self.about = text, tuple(about)
        super().__init__(f"{', '.join(about)}: {text}" if about else text)

    @classmethod
    def of(cls, refusals: Iterable[Refusal]) -> "ConfigError":
        """Returns the error that tells all of these, a line each."""
        refusals = tuple(refusals)
        error = cls("\n".join(map(str, refusals)))
        error.refusals = refusals
        return error

    def named(self, choices: Mapping[str, str]) -> "ConfigError":
        """Returns the error with the names of these choices, by group: `compress=topk, sync=bsp: ...`."""
        return ConfigError(self.text, [f"{group}={choices[group]}" for group in self.about])


OPTIONS: dict[str, tuple[type, ...]] = {
    "a text or None": (str, NoneType),
    "a text or a Path": (str, PathLike),
    "a text, a Path or None": (str, PathLike, NoneType),
    "a list of texts": (Iterable,),
    "names, paths or results": (Iterable, PathLike),
}


def check_options(kind: str, **options: object) -> None:
    """Refuses options of a function that are not of `kind`, one of `OPTIONS`. Raises `ConfigError`."""
    for key, value in options.items():
        if not isinstance(value, OPTIONS[kind]):
            raise ConfigError(f"{key}={value}: is of type {type(value).__name__}. Choose {kind}.")
