"""Finds the runs to compare, wherever they were recorded."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import summaries
from .checksums import verdict_on
from .configurations import parse_configuration
from .errors import CorruptRunError, RunNameError
from .files import UnusableFileError, read_json, read_text
from .run_data import SWEEP_FILE, RunData, Swept
from .run_directory import SWEEP_NOTE, Record, RunDirectory, is_entry, is_run, run_names
from .text import did_you_mean

OF_YAML = (".yaml", ".yml")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector. The objects that are read stay and form no cycles; collecting takes a quarter of
    the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_collector_paused()
def gather(names: list[str], root: Path, records: bool = True, whole: bool = False) -> list[RunData]:
    """The runs that `names` stand for, in that order, each once.

    A name is a run's under `root`, a sweep's there (all its runs, by trial and seed), SWEEP/RUN, the path of either, a
    `.wandb` file or a folder with some, a CSV file (imported_tables.py), or a JSON file: what `compare --format json`
    prints, or a list of objects with `name`, `summary`, `config`, `history` as W&B's API gives them. `records=False`
    leaves out the records of run directories with a summary, which a table does not need.
    Raises RunNameError, naming close matches, for any other name, CorruptRunError for a file that holds no runs. A
    damaged run directory has status `damaged`; `whole`: CorruptRunError, if it is one of the names itself.
    """
    from .imported_runs import from_json, from_wandb
    from .imported_tables import from_csv

    found: dict[Any, RunData] = {}
    for name in names:
        kind, path = _locate(name, root)
        match kind:
            case "run":
                runs = {path: found.get(path) or from_directory(RunDirectory(path), records)}
                if whole:
                    check(runs[path])
            case "sweep":
                runs = {run.path: run for run in runs_of_sweep(path, records)}
            case "wandb":
                runs = from_wandb(path)
            case _:
                read = from_csv if kind == "csv" else from_json
                runs = {(path, i): run for i, run in enumerate(read(path))}
        if not runs:
            raise RunNameError(f"{name}: has no runs yet")
        for key, run in runs.items():
            found.setdefault(key, run)
    return list(found.values())


@_collector_paused()
def every(root: Path, records: bool = True) -> list[RunData]:
    """The runs under `root` but for those of sweeps, by the time of their last record; as of `gather`."""
    paths = [root / name for name in run_names(root)]
    paths.sort(key=_last_change)
    there = Path(os.path.realpath(root))
    places = [Path(os.path.realpath(path)) if path.is_symlink() else there / path.name for path in paths]
    return [from_directory(RunDirectory(place), records) for place in dict.fromkeys(places)]


def from_directory(run: RunDirectory, records: bool = True) -> RunData:
    """Raises nothing for a damaged run: its status says so, and `damage`."""
    config, of_config = _config(run)
    every = records or not run.summary.exists()
    told, of_records = _records(run, every)
    summary = summaries.summary_of(run, told if every else None)
    swept, of_note = _swept(run)
    summary = summaries.configured(config, swept.parameters if swept else {}) | summary
    schedule, of_schedule = _schedule(run.schedule) if os.path.lexists(run.schedule) else (None, [])
    adversarial, of_attack = _adversarial(run.adversarial) if os.path.lexists(run.adversarial) else (None, [])
    damage = (*of_config, *of_records, *of_note, *of_schedule, *of_attack)
    return RunData(
        *(run.name, summary, config, told or [], run.path, swept),
        damage=damage,
        schedule=schedule,
        adversarial=adversarial,
    )


def check(run: RunData) -> None:
    """Raises CorruptRunError, naming the file, when its summary is damaged."""
    if run.summary.get("status") == "damaged":
        raise CorruptRunError(str(run.summary.get("reason")))


def _config(run: RunDirectory) -> tuple[dict[str, Any], list[str]]:
    try:
        text = read_text(run.config)
        config = parse_configuration(text)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{run.config}: cannot be read ({error.strerror})"]
    except UnusableFileError as error:
        return {}, [f"{run.config}: {error}"]
    if not isinstance(config, dict):
        return {}, [f"{run.config}: is no YAML mapping"]
    changed = verdict_on(text) == "changed"
    return config, [f"{run.config}: is not as it was written (its checksum differs)"] if changed else []


def _records(run: RunDirectory, wanted: bool) -> tuple[list[Record] | None, list[str]]:
    """None: they cannot be read. Not `wanted`: none, only whether the file begins as it should."""
    try:
        records, damaged = run.scan(None if wanted else 1)
    except OSError as error:
        return None, [f"{run.metrics}: cannot be read ({error.strerror})"]
    except UnusableFileError as error:
        return None, [f"{run.metrics}: {error}"]
    if not wanted:
        return [], [f"{run.metrics}: begins with what is no record"] if damaged else []
    count = f"{len(damaged)} lines are" if len(damaged) > 1 else "1 line is"
    return records, [f"{run.metrics}: {count} no record (the first: line {damaged[0]})"] if damaged else []


def _schedule(file: Path) -> tuple[dict[str, Any] | None, list[str]]:
    from .schedule import read_schedule

    return _kept(file, read_schedule)


def _adversarial(file: Path) -> tuple[dict[str, Any] | None, list[str]]:
    from .adversarial import read_adversarial

    return _kept(file, read_adversarial)


def _kept(file: Path, read: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        return read(file), []
    except OSError as error:
        return None, [f"{file}: cannot be read ({error.strerror})"]
    except UnusableFileError as error:
        return None, [f"{file}: {error}"]


@_collector_paused()
def runs_of_sweep(path: Path, records: bool = True) -> list[RunData]:
    """Returns the runs by trial, then seed. Runs without a trial's note come last."""
    runs = [from_directory(RunDirectory(path / name), records) for name in run_names(path)]
    return sorted(
        runs, key=lambda run: (run.swept is None, (run.swept.trial, run.swept.seed) if run.swept else (), run.name)
    )


def sweep_names(root: Path) -> list[str]:
    """The names of the sweeps under `root`, sorted."""
    return sorted(file.parent.name for file in root.glob(f"*/{SWEEP_FILE}"))


def is_configuration(name: str, root: Path) -> bool:
    """Returns whether `name` is a YAML file, and no run or sweep under `root`."""
    path = Path(name)
    try:
        return path.suffix in OF_YAML and path.is_file() and not (root / name).is_dir()
    except (OSError, ValueError):  # as in _kind
        return False


def sweep_at(name: str, root: Path) -> Path | None:
    """The directory of the sweep `name` under `root`, or of the one at that path; None: it is no sweep."""
    for path in [root / name, Path(name)] if is_entry(name) else [Path(name)]:
        try:
            if is_run(path):
                return None
            if (path / SWEEP_FILE).is_file():
                return Path(os.path.realpath(path))
        except (OSError, ValueError):  # as in _kind
            return None
    return None


def _locate(name: str, root: Path) -> tuple[str, Path]:
    """Returns the kind of `name` (run, sweep, wandb, csv, json), and its path. Raises RunNameError."""
    if not name.strip():
        raise RunNameError(
            f"run {name!r}: must be the name or path of a run, a sweep, a W&B folder, a JSON or a CSV file"
        )
    parts = name.split("/")
    if is_configuration(name, root):
        raise RunNameError(
            f"{name}: is a YAML file, and holds no run; paceline diff compares configurations, paceline train --config "
            "runs one, paceline sweep a sweep's"
        )
    inside = len(parts) <= 2 and all(map(is_entry, parts))
    for path in [root / name, Path(name)] if inside else [Path(name)]:
        if kind := _kind(path):
            return kind, Path(os.path.realpath(path))
    sweeps = sweep_names(root)
    nested = [f"{sweep}/{run}" for sweep in sweeps for run in run_names(root / sweep)]
    known = [*run_names(root), *sweeps, *(nested if "/" in name else [])]
    there = (
        f"there are {', '.join(known[:5])}{' and more' if len(known) > 5 else ''}" if known else "there are none yet"
    )
    hint = did_you_mean(name, known) or did_you_mean(parts[-1], known) or there
    raise RunNameError(f"no run {name!r} under {root}, nor a sweep, W&B folder, JSON or CSV file of that name: {hint}")


def _last_change(run: Path) -> float:
    try:
        return (run / "metrics.jsonl").stat().st_mtime
    except OSError:  # it is damaged
        return run.stat().st_mtime


def _kind(path: Path) -> str | None:
    try:
        if path.is_file():
            return {".wandb": "wandb", ".csv": "csv"}.get(path.suffix, "json")
        if not path.is_dir():
            return None
        if is_run(path):
            return "run"
        if (path / SWEEP_FILE).is_file() or run_names(path):
            return "sweep"
    except (OSError, ValueError):  # a name that is too long, or has a NUL in it
        return None
    from .imported_runs import wandb_files

    return "wandb" if next(wandb_files(path), None) else None


def _swept(run: RunDirectory) -> tuple[Swept | None, list[str]]:
    note = run.path / SWEEP_NOTE
    try:
        swept = Swept.of_overrides(**read_json(note))
    except FileNotFoundError:
        return None, []
    except OSError as error:
        return None, [f"{note}: cannot be read ({error.strerror})"]
    except UnusableFileError as error:
        return None, [f"{note}: {error}"]
    except (TypeError, AttributeError):
        return None, [f"{note}: is no trial of a sweep"]
    known = isinstance(swept.sweep, str) and isinstance(swept.trial, int) and isinstance(swept.seed, int)
    return (swept, []) if known else (None, [f"{note}: is no trial of a sweep"])


# What Hydra's grammar takes for a whole number, and for any number.
