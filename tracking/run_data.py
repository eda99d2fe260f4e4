"""A recorded run, as it is compared and drawn."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import UnusableFileError, read_text
from .run_directory import Record
from .visible import visible

_WHOLE = re.compile(r"[+-]?(0|[1-9](_?\d)*)")
_NUMBER = re.compile(r"[+-]?((0|[1-9](_?\d)*)(\.(\d(_?\d)*)?)?|\.\d(_?\d)*)(e[+-]?\d(_?\d)*)?|[+-]?(inf|nan)", re.I)
_WORDS = {"true": True, "false": False, "null": None}
SWEEP_FILE = "sweep.yaml"  # in the directory of a sweep
SWEEP_STORAGE = "storage"  # likewise: the URL of the database with its study, without its secrets


@dataclass(frozen=True)
class Swept:
    """The trial of a sweep that a run is."""

    sweep: str
    trial: int
    seed: int
    parameters: dict[str, Any]  # what the sweep chose: {"sync": "ssp", "optimizer.lr": 0.1}

    @classmethod
    def of_overrides(cls, sweep: str, trial: int, seed: int, parameters: dict[str, Any]) -> "Swept":
        """Reads parameters from texts as overrides write them: `1e-3` is a number, `'3'` in quotes is text."""
        return cls(sweep, trial, seed, {name: read_value(value) for name, value in parameters.items()})


@dataclass(frozen=True)
class RunData:
    """A recorded run. `summary`: as summary.json, or what is known of it so far, with `name` and `status` at least."""

    name: str
    summary: dict[str, Any]
    config: dict[str, Any]  # as config.yaml; {}: not known
    records: list[Record]  # as metrics.jsonl
    path: Path | None  # None: it is no run directory of ours
    swept: Swept | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # by names of its own: W&B's summary, an exported table's row
    file: Path | None = None  # that holds this run and no other: a W&B file
    damage: tuple[str, ...] = ()  # of its files, what could not be read
    schedule: dict[str, Any] | None = None  # as schedule.json: see schedule.py
    adversarial: dict[str, Any] | None = None  # as adversarial.json: see adversarial.py


def resuming(sweep: Path, name: str | None = None) -> str:
    """Returns the command that goes on with the sweep in a directory. `name`: the sweep's, if not the directory's."""
    url = storage_of(sweep)
    option = f" --storage {shlex.quote(url)}" if url else ""
    return f"paceline sweep --resume --name {shlex.quote(name or sweep.name)}{option}"


def storage_of(sweep: Path) -> str | None:
    """Returns the URL of the database that has a sweep's study, without secrets; None: its directory has the study."""
    try:
        return visible(read_text(sweep / SWEEP_STORAGE))
    except (OSError, UnusableFileError):
        return None


def read_value(value: Any) -> Any:
    """Returns the value of an override's text; a list, a mapping and what is no text stay as they are."""
    if not isinstance(value, str):
        return value
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return re.sub(r"(\\+)(?=['\"]|$)", lambda found: found[0][: len(found[0]) // 2], value[1:-1])
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _WHOLE.fullmatch(value) and len(value) < 300:
        return int(value)
    return float(value) if _NUMBER.fullmatch(value) else value
