"""A figure over parameters, as it is asked for: `x=sync.backups y=step,time_to_accuracy line=sync log=sync.backups`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..columns import nearest
from ..errors import TableError
from ..files import UnusableFileError, parse_yaml, read_text, read_yaml
from ..run_data import SWEEP_FILE, RunData
from ..run_directory import NAME

OPTION = "--figure"
KEYS = ("x", "y", "line", "log", "name")
EXAMPLE = "such as 'x=hardware.workers y=time_to_accuracy line=sync'"
Name = tuple[str, ...]  # of a column or a configuration key: the first of these that a run has


@dataclass(frozen=True)
class FigureRequest:
    """`text`: as it was written, for messages. `log`: those of x and y whose axis is logarithmic."""

    text: str
    x: Name
    y: tuple[Name, ...]
    lines: tuple[Name, ...]  # each combination of their values is a line
    log: frozenset[Name]
    name: str

    @classmethod
    def parse(cls, text: str) -> "FigureRequest":
        """Raises TableError."""
        given: dict[str, str] = {}
        for word in text.split():
            key, equals, value = word.partition("=")
            if not equals or not value:
                raise TableError(f"{OPTION} {text}: {word} must be KEY=NAME, {EXAMPLE}")
            if key not in KEYS:
                raise TableError(f"{OPTION} {text}: there is no key {key}; {nearest(key, list(KEYS))}")
            if key in given:
                raise TableError(f"{OPTION} {text}: {key} is there twice")
            given[key] = value
        for key in ("x", "y"):
            if key not in given:
                raise TableError(f"{OPTION} {text}: {key}= is missing, {EXAMPLE}")
        y = tuple(map(_name, _listed(given["y"])))
        x, log = _name(given["x"]), frozenset(map(_name, _listed(given.get("log", ""))))
        for name in sorted(log - {x, *y}):
            shown = ", ".join("|".join(axis) for axis in (x, *y))
            raise TableError(f"{OPTION} {text}: log={'|'.join(name)} must be one of x and y: {shown}")
        name = given.get("name", f"{given['y'].partition(',')[0]}-against-{given['x']}")
        if "name" in given and not NAME.fullmatch(name):
            raise TableError(f"{OPTION} {text}: name={name} must be letters, digits and ._-, 64 at most")
        lines = tuple(map(_name, _listed(given.get("line", ""))))
        return cls(text, x, y, lines, log, re.sub(r"[^A-Za-z0-9._-]+", "-", name))


def _listed(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _name(text: str) -> Name:
    return tuple(word for word in text.split("|") if word)


def in_description(description: Any) -> list[str]:
    """The figures that a sweep's description asks for: lines that begin with --figure."""
    lines = [line.strip() for line in str(description or "").splitlines()]
    return [line.removeprefix(OPTION).strip(" '\"") for line in lines if line.split(" ")[0] == OPTION]


def asked(texts: Iterable[str]) -> list[FigureRequest]:
    """Parses the values of the option: each is a figure, or a sweep's file with figures in its description. Raises
    TableError.
    """
    found: list[FigureRequest] = []
    for text in texts:
        is_file = "=" not in text and Path(text).suffix in (".yaml", ".yml")
        found += [FigureRequest.parse(each) for each in (_of_file(Path(text)) if is_file else [text])]
    return found


def _of_file(path: Path) -> list[str]:
    try:
        plain = read_yaml(path)
    except OSError as error:
        raise TableError(f"{OPTION} {path}: cannot be read: {error.strerror}") from None
    except UnusableFileError as error:
        raise TableError(f"{OPTION} {path}: {error}") from None
    found = in_description(plain.get("description")) if isinstance(plain, dict) else []
    if not found:
        raise TableError(f"{OPTION} {path}: its description has no line that begins with {OPTION}")
    return found


def of_sweeps(runs: Iterable[RunData]) -> list[FigureRequest]:
    """Returns the figures that the sweeps of these runs ask for, each once. A damaged sweep file is passed over."""
    directories = dict.fromkeys(run.path.parent for run in runs if run.swept and run.path)
    texts: dict[str, None] = {}
    for directory in directories:
        try:
            plain = parse_yaml(read_text(directory / SWEEP_FILE))
            texts |= dict.fromkeys(text for text in plain.get("figures", []) if isinstance(text, str))
        except (OSError, UnusableFileError, AttributeError, TypeError):
            continue
    return _readable(texts)


def _readable(texts: Iterable[str]) -> list[FigureRequest]:
    found: list[FigureRequest] = []
    for text in texts:
        try:
            found.append(FigureRequest.parse(text))
        except TableError:
            continue
    return found
