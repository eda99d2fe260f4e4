"""The runs and sweeps under a root as things that take disk space: their sizes and ages, and their removal.

A sweep is one entry. Nothing outside of the root is removed: an entry that is a symbolic link is refused, and links
inside of an entry are removed without following them. A run that goes on is never removed.
"""

import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .alive import is_held
from .columns import BY_KEY, METRICS, TRAINED, known, no_column
from .errors import CorruptRunError, RunNameError, TableError
from .live import NAME as LIVE
from .run_data import SWEEP_FILE
from .run_directory import RunDirectory, is_entry, is_run, run_names, writing
from .selection import larger_first, measured
from .sources import sweep_names
from .state import state_of
from .summaries import Row, Summary, row_of, summary_of
from .text import did_you_mean

LOCK = "lock"  # in a sweep's directory, which its sweeper holds
RECENT = 10.0  # seconds since the last change of a run that has not ended: its launcher may be on another host
ENDED = ("completed", "pruned")  # as they should


@dataclass(frozen=True)
class StoredEntry:
    """A run or a sweep under the root."""

    path: Path
    runs: tuple[Path, ...]  # of a sweep; of a run itself
    is_sweep: bool
    states: tuple[str, ...]  # of the runs: as `state.state_of`
    rows: tuple[Row, ...]  # of the runs
    size: int  # bytes
    changed: float  # seconds since 1970 of the last change of a file in it
    metrics: Mapping[str, bool] = field(default_factory=dict[str, bool])  # of its tasks, without a column: larger first

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_link(self) -> bool:
        return self.path.is_symlink()

    @property
    def is_failed(self) -> bool:
        """Returns whether no run of it ended as it should."""
        return not any(state in ENDED for state in self.states)

    @property
    def status(self) -> str:
        if not self.is_sweep:
            return self.states[0]
        counts = {state: self.states.count(state) for state in dict.fromkeys(self.states)}
        return ", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs"

    def best(self, key: str) -> tuple[float, Row] | None:
        """The best value of a column among its completed runs, and the row of that run; None also of a metric of which
        nobody knows if larger is better.
        """
        if key not in BY_KEY and key not in self.metrics:
            return None
        found = [
            (row[key], row)
            for row, state in zip(self.rows, self.states, strict=True)
            if state in ENDED and isinstance(row.get(key), int | float)
        ]
        return sorted(found, key=lambda each: each[0], reverse=self.larger_first(key))[0] if found else None

    def larger_first(self, key: str) -> bool:
        return BY_KEY[key].larger_first if key in BY_KEY else self.metrics[key]

    def result(self) -> tuple[str, float] | None:
        """The metric of the task and its value: the last one of a run, the best one of a sweep."""
        for key in (*METRICS, *self.metrics):
            best = self.best(key)
            if best is not None:
                return key, best[0]
        return None


def stored(root: Path) -> list[StoredEntry]:
    """Every run and sweep directly under `root`, by name."""
    names = dict.fromkeys([*run_names(root), *sweep_names(root)])
    return [entry_of(root / name) for name in sorted(names)]


def entry_of(path: Path) -> StoredEntry:
    """Reads the entry at `path`, be its runs damaged."""
    is_sweep = not is_run(path)
    runs = tuple(path / name for name in run_names(path)) if is_sweep else (path,)
    size, changed = _measured(path)
    summaries = list(map(_summary, runs))
    rows, metrics = tuple(map(_row, summaries)), larger_first(summaries)
    return StoredEntry(path, runs, is_sweep, tuple(map(_state, runs)), rows, size, changed, metrics)


def named(names: list[str], root: Path) -> list[StoredEntry]:
    """The entries that are meant, each once. A name is that of an entry, or its path.

    Raises RunNameError for what is not directly under `root`, a sweep's single run, and a link.
    """
    found: dict[Path, StoredEntry] = {}
    for name in names:
        path = _located(name, root)
        found.setdefault(path, entry_of(path))
    return list(found.values())


def _located(name: str, root: Path) -> Path:
    there = Path(os.path.realpath(root))
    path = root / name if is_entry(name) else Path(name)
    if ".." in path.parts or not path.name or Path(os.path.realpath(path.parent)) != there:
        if path.parent.name in sweep_names(root) and is_run(root / path.parent.name / path.name):
            raise RunNameError(
                f"{name}: is one run of a sweep, and a sweep is removed as a whole. Choose {path.parent.name}."
            )
        raise RunNameError(f"{name}: is not directly under {root}. Choose a run or sweep that paceline ls lists.")
    if path.is_symlink():
        raise RunNameError(f"{name}: is a symbolic link, and its target may lie outside of {root}. Remove the link.")
    if not is_run(path) and not (path / SWEEP_FILE).is_file():
        every = [*run_names(root), *sweep_names(root)]
        raise RunNameError(
            f"{name}: there is no such run or sweep under {root}; {did_you_mean(path.name, every) or 'see paceline ls'}"
        )
    return there / path.name


# -- choosing


def is_live(entry: StoredEntry) -> bool:
    """Returns whether a run of the entry goes on, or its sweeper works on it."""
    if (entry.is_sweep and is_held(entry.path / LOCK)) or "submitted" in entry.states:
        return True
    return any(is_held(run / "metrics.jsonl") or _was_just_written(run) for run in entry.runs)


def _was_just_written(run: Path) -> bool:
    if _state(run) not in ("running", "died"):
        return False
    changes = [_stat(run / name) for name in ("metrics.jsonl", LIVE)]
    # a date far ahead is that of a clock which was set back since, or of another host
    return any(each is not None and abs(time.time() - each.st_mtime) < RECENT for each in changes)


def prunable(
    entries: list[StoredEntry], older: float | None, failed: bool, keep_best: int | None, metric: str | None
) -> list[StoredEntry]:
    """The entries that fulfil every condition: not changed for `older` seconds, `failed`, and not among the best.

    `keep_best` entries of each model, data set and task are kept. Raises TableError for an unknown metric.
    """
    best = kept_best(entries, keep_best, metric) if keep_best is not None else set()
    now = time.time()
    return [
        entry
        for entry in entries
        if (older is None or now - entry.changed >= older)
        and (not failed or entry.is_failed)
        and entry.path not in best
    ]


def kept_best(entries: list[StoredEntry], count: int, metric: str | None) -> set[Path]:
    """The paths of the `count` best entries of each model, data set and task by a column. Raises TableError."""
    asked = None if metric is None else _metric(metric, entries)
    found: dict[tuple[Any, ...], list[tuple[float, Path]]] = {}
    for entry in entries:
        for key in (*METRICS, *entry.metrics) if asked is None else (asked,):
            if (best := entry.best(key)) is not None:
                value, row = best
                setting = (key, entry.larger_first(key), *map(row.get, TRAINED))
                found.setdefault(setting, []).append((value, entry.path))
    if asked is not None and entries and not found:
        raise TableError(f"--metric {metric}: no run here has it in its summary. Choose another, such as accuracy.")
    ranked = [sorted(each, key=lambda pair: pair[0], reverse=setting[1]) for setting, each in found.items()]
    return {path for each in ranked for _, path in each[:count]}


def _metric(name: str, entries: list[StoredEntry]) -> str:
    if any(name in entry.metrics for entry in entries):
        return name
    column = known(name)
    if column is None or not column.is_number:
        raise no_column(name, [key for key, column in BY_KEY.items() if column.is_number])
    return column.key


# -- removing


def check_removable(entries: list[StoredEntry]) -> None:
    """Raises RunNameError where a run goes on."""
    live = [entry.name for entry in entries if is_live(entry)]
    if live:
        how = "Stop it first (a scheduler's job: paceline cancel RUN), or wait for its end."
        raise RunNameError(f"{', '.join(live)}: still goes on. {how}")


def remove(entry: StoredEntry) -> None:
    """Removes the entry's directory. Raises RunNameError where a run goes on now, and StorageError."""
    check_removable([entry])
    with writing(entry.path):
        shutil.rmtree(entry.path)  # raises OSError for a link


# -- reading


def _state(run: Path) -> str:
    try:
        return state_of(RunDirectory(run))[0]
    except (OSError, ValueError, CorruptRunError):
        return "damaged"


def _summary(run: Path) -> Summary:
    try:
        return summary_of(RunDirectory(run))
    except (OSError, ValueError):
        return {}


def _row(summary: Summary) -> Row:
    try:
        return row_of(summary) | measured(summary)
    except ValueError:
        return {}


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _measured(path: Path) -> tuple[int, float]:
    """The bytes of the files below `path`, links not followed, and the time of the last change."""
    size, changed = 0, 0.0
    for folder, _, files in os.walk(path):
        for name in files:
            found = _stat(Path(folder, name))
            if found is not None:
                size += found.st_size if stat.S_ISREG(found.st_mode) else 0
                changed = max(changed, found.st_mtime)
    if not changed and (found := _stat(path)) is not None:
        changed = found.st_mtime
    return size, changed
