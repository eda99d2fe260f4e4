"""A user's own schedule: a CSV as torch.distributed.pipelining writes it, or a function of a user's own module."""

import csv
import difflib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from ...conf.errors import ConfigError
from .actions import Action, Schedule, parse
from .check import check
from .schedules import SCHEDULES
from .without_flush import READS

MOST_BYTES = 2**22
_OF_TORCH = re.compile(r"\d+REDUCE_GRAD")  # sums over replicas, which a sync mode makes


def rows_of(named: str, workers: int, micro_batches: int, chunks: int, allowed: Sequence[str]) -> list[str]:
    """Returns the schedule of this name, as the lines of a CSV. Raises `ConfigError`.

    `allowed`: the modules whose code may run.
    """
    if named.endswith(".csv"):
        return _read(named)
    if "." in named:
        return _called(named, workers, micro_batches, chunks, allowed)
    nearest = difflib.get_close_matches(named, [*SCHEDULES, *READS], n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise ConfigError(
        f"strategy.schedule={named}: {hint}must be {', '.join([*SCHEDULES, *READS])}, a file whose name ends in .csv, "
        "or module.function of your own with --allow-module module"
    )


def parsed(rows: Sequence[str]) -> Schedule:
    """Parses the lines of a CSV, one for each worker. Raises `ConfigError`."""
    schedule: list[list[Action]] = []
    try:
        table = [*csv.reader(rows)]
    except csv.Error as error:
        raise ConfigError(f"strategy.schedule: is no CSV: {error}") from None
    for worker, cells in enumerate(table):
        row: list[Action] = []
        for cell in map(str.strip, cells):
            if not cell or _OF_TORCH.fullmatch(cell):
                continue  # torch's idle places
            try:
                row.append(parse(cell))
            except ValueError as error:
                raise ConfigError(f"strategy.schedule: worker {worker}: {error}") from None
        schedule.append(row)
    return schedule


def _read(path: str) -> list[str]:
    file = Path(path)
    try:
        if file.exists() and not (file.is_file() and file.stat().st_size <= MOST_BYTES):
            raise ConfigError(f"strategy.schedule={path}: must be a regular file of at most {MOST_BYTES:,} bytes")
        rows = file.read_text().splitlines()
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"strategy.schedule={path}: cannot be read: {error}") from None
    while rows and not rows[-1].strip():
        rows.pop()
    return rows


def _called(named: str, workers: int, micro_batches: int, chunks: int, allowed: Sequence[str]) -> list[str]:
    module, _, function = named.rpartition(".")
    if not any(f"{module}.".startswith(f"{each}.") for each in allowed):
        raise ConfigError(
            f"strategy.schedule={named}: {module} is a module of your own, whose code runs only if you allow it: "
            f"--allow-module {module.split('.')[0]}"
        )
    try:
        made = getattr(importlib.import_module(module), function)(workers, micro_batches, chunks)
        return [",".join(map(str, row)) for row in made]
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"strategy.schedule={named}: {function}({workers}, {micro_batches}, {chunks}) must return a list of "
            f"actions for each worker: {type(error).__name__}: {error}"
        ) from error


def checked(schedule: Schedule, workers: int, micro_batches: int) -> Schedule:
    """A user's own. Raises `ConfigError`."""
    if len(schedule) != workers:
        raise ConfigError(
            f"strategy.stages={workers}: strategy.schedule has {len(schedule)} lines, one for each worker. "
            + (f"Choose strategy.stages={len(schedule)}." if len(schedule) > 1 else f"It needs {workers} of them.")
        )
    given = [action for row in schedule for action in row]
    most = 1 + max((action.micro_batch for action in given), default=-1)
    if most != micro_batches:
        raise ConfigError(
            f"strategy.micro_batches={micro_batches}: strategy.schedule has {most}. Choose "
            f"strategy.micro_batches={most}."
        )
    try:
        check(schedule, 1 + max(action.stage for action in given), micro_batches)
    except ConfigError as error:
        raise ConfigError(f"strategy.schedule: {error}") from None
    return schedule
