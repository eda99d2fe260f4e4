"""Runs that lie in no run directory: W&B's files, and exported JSON."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import summaries
from .columns import BY_KEY
from .errors import CorruptRunError
from .files import UnusableFileError, read_text
from .run_data import RunData
from .run_directory import Record
from .values import flat, plain_number
from .wandb_datastore import StoredWandbRun, read, read_json

# Names that others give to what our table calls accuracy and loss; the first that is there is taken.
ACCURACY = ("val_accuracy", "test_accuracy", "val/accuracy", "test/accuracy", "eval/accuracy", "accuracy")
LOSS = ("val_loss", "test_loss", "val/loss", "test/loss", "eval/loss", "loss")
STEP_LOSS = ("train_loss", "train/loss", "loss")
STATES = {"finished": "completed", "crashed": "failed", "failed": "failed", "killed": "failed", "running": "unfinished"}
MOST_BYTES = 2**30  # of an exported file
LONGEST_LIST = 1_000_000  # characters of the names of an exported group's runs
EVALUATION, STEP = "evaluation/", "train/"  # how our own mirror names what it logs (tracking/wandb.py)


def wandb_files(folder: Path) -> Iterator[Path]:
    """The `.wandb` files below it. What cannot be read, or vanishes meanwhile, is passed over."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if name.endswith(".wandb"))


def from_wandb(path: Path) -> dict[Any, RunData]:
    """The runs of a `.wandb` file, or of all below a folder, by time; parts of one resumed run are joined.

    Keys say of which files. Raises CorruptRunError for a single file; one of several has status `damaged`.
    """
    files = [path] if path.is_file() else sorted(wandb_files(path))
    files = list(dict.fromkeys(Path(os.path.realpath(file)) for file in files))
    parts: dict[str, list[tuple[Path, StoredWandbRun]]] = {}
    damaged: dict[Any, RunData] = {}
    read_files: list[tuple[Path, StoredWandbRun]] = []
    for file in files:
        try:
            read_files.append((file, read(file)))
        except CorruptRunError as error:
            if len(files) == 1:
                raise
            name = file.stem.removeprefix("run-")
            told = {"name": name, "status": "damaged", "reason": str(error)}
            damaged[(file,)] = RunData(name, told, {}, [], None, file=file)
    for file, stored in sorted(read_files, key=lambda found: (found[1].started, found[0])):
        parts.setdefault(stored.run_id or str(file), []).append((file, stored))
    return {tuple(file for file, _ in part): _joined(part) for part in parts.values()} | damaged


def _joined(parts: "list[tuple[Path, StoredWandbRun]]") -> RunData:
    file, last = parts[-1]
    summary = {key: value for _, stored in parts for key, value in stored.summary.items()}
    history = [row for _, stored in parts for row in stored.history]
    hurt = [f"{file.name} is damaged in {stored.damaged} places" for file, stored in parts if stored.damaged]
    status = {None: "unfinished", 0: "completed"}.get(last.exit_code, "failed")
    name = (last.display_name or last.run_id or file.stem)[: summaries.LONGEST]
    run = _run(name, last.config, summary, history, status, "; ".join(hurt) or None)
    return replace(run, file=file if len(parts) == 1 else None)


def from_json(file: Path) -> list[RunData]:
    """The runs of an exported file. Raises CorruptRunError when it holds none."""
    try:
        content = read_json(read_text(file, MOST_BYTES))
    except OSError as error:
        raise CorruptRunError(f"{file}: cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise CorruptRunError(f"{file}: {error}") from None
    things = content if isinstance(content, list) else [content]
    runs = [_from_object(thing) if isinstance(thing, dict) else None for thing in things]
    if not runs or None in runs:
        raise CorruptRunError(
            f"{file}: holds no runs; it must be what `paceline compare --format json` prints, or a list of objects "
            'with "name", "summary", "config" and "history"'
        )
    for number, run in enumerate(runs, 1):
        if run is not None and len(run.name) > summaries.LONGEST:
            raise CorruptRunError(
                f"{file}: its run {number} has a name of {len(run.name):,} characters; "
                f"the most is {summaries.LONGEST:,}"
            )
    return [run for run in runs if run is not None]


def _from_object(thing: dict[str, Any]) -> RunData | None:
    if isinstance(thing.get("run"), str):
        return _from_row(thing)
    name = thing.get("name") or thing.get("id")
    summary, config, history = (_mapping(thing, "summary"), _mapping(thing, "config"), thing.get("history") or [])
    if not isinstance(name, str) or summary is None or config is None or not isinstance(history, list):
        return None
    # the API's raw form: {"lr": {"value": 0.1, "desc": null}}
    config = {key: value["value"] if _is_described(value) else value for key, value in config.items()}
    rows = [row for row in history if isinstance(row, dict)]
    status = STATES.get(str(thing.get("state")), "completed" if summary else "unfinished")
    return _run(name, config, summary, rows, status, None)


def _is_described(value: Any) -> bool:
    return isinstance(value, dict) and {"value"} <= value.keys() <= {"value", "desc"}


def _mapping(thing: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = thing.get(key)
    if isinstance(value, str):  # W&B's API gives JSON as text
        try:
            value = read_json(value)
        except UnusableFileError:
            return None
    return {} if value is None else value if isinstance(value, dict) else None


def _from_row(row: dict[str, Any]) -> RunData:
    name = str(row["run"])
    try:
        summary = summaries.summary_from(row)
        for key in ("runs", "others"):
            if len(str(row.get(key))) > LONGEST_LIST:
                raise ValueError(f"its {key} have more than {LONGEST_LIST:,} characters")
    except (ValueError, TypeError, OverflowError) as error:
        return RunData(name, {"name": name, "status": "damaged", "reason": str(error)}, {}, [], None)
    summary.setdefault("status", "unfinished")
    return RunData(name, summary, {}, [], None, None, row)


def _run(
    name: str,
    config: dict[str, Any],
    raw: dict[str, Any],
    history: list[dict[str, Any]],
    status: str,
    damaged: str | None,
) -> RunData:
    """A run that W&B tells of. Its values of other names than ours stay reachable as `extra`."""
    config = {key: value for key, value in config.items() if key != "_wandb"}
    extra = {key: value for key, value in flat(raw, whole="_type").items() if value is not None and key[:1] != "_"}
    if _is_ours(config):
        records = [record for row in history for record in _mirrored(row)]
        summary = summaries.configured(config) | summaries.from_records(name, records)
        summary |= {"status": status} | _nested(extra)
    else:
        summary = _translated(extra) | {"name": name, "status": status}
        records = [record for row in history for record in _logged(row, history[0])]
    if damaged:
        summary["reason"] = damaged
    try:
        summaries.row_of(summary)
    except (ValueError, OverflowError) as error:
        summary = {"name": name, "status": "damaged", "reason": str(error)}
    return RunData(name, summary, config, records, None, None, extra)


def _is_ours(config: dict[str, Any]) -> bool:
    """Returns whether `config` is an Experiment of ours."""
    strategy = config.get("strategy")
    return isinstance(strategy, dict) and {"name", "target", "knobs"} <= strategy.keys()


def _translated(raw: dict[str, Any]) -> summaries.Summary:
    """A summary of what has one of our columns' names, or a well-known one."""
    row = {key: value for key, value in raw.items() if key in BY_KEY and _is_value(key, value)}
    accuracy = _first(raw, ACCURACY)
    row["accuracy"] = accuracy if accuracy is not None and 0 <= accuracy <= 1 else None  # percent: by its own name
    row["loss"] = _first(raw, LOSS)
    return summaries.summary_from(row)


def _is_value(key: str, value: Any) -> bool:
    field = summaries.FIELDS.get(key)
    return field is not None and (
        isinstance(value, str) and len(value) <= field.longest if field.text else _number(value) is not None
    )


def _number(value: Any) -> float | None:
    """NaN is none: another name may have more to tell."""
    known = plain_number(value)
    return None if known is None or math.isnan(known) else known


def _mirrored(row: dict[str, Any]) -> list[Record]:
    """Returns the records of which our mirror made this row."""
    shared = {key: value for key, value in row.items() if "/" not in key and not key.startswith("_")}
    records: list[Record] = []
    for kind, prefix in (("step", STEP), ("evaluation", EVALUATION)):
        told = {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}
        if told:
            records.append({"kind": kind, **shared, **told})
    return records


def _logged(row: dict[str, Any], first: dict[str, Any]) -> list[Record]:
    """Steps and evaluations by well-known names; time as W&B saw it."""
    row = flat(row, whole="_type")
    time, now, began = (
        _number(of.get(key)) for of, key in ((row, "_runtime"), (row, "_timestamp"), (first, "_timestamp"))
    )
    if time is None and now is not None and began is not None:
        time = now - began
    shared = {"step": row.get("_step"), "epoch": row.get("epoch"), "time": time}
    accuracy, loss = _first(row, ACCURACY), _first(row, STEP_LOSS)
    records: list[Record] = []
    if loss is not None:
        records.append({"kind": "step", **shared, "loss": loss})
    if accuracy is not None and 0 <= accuracy <= 1:
        records.append({"kind": "evaluation", **shared, "accuracy": accuracy, "loss": _first(row, LOSS)})
    return records


def _first(values: dict[str, Any], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if _number(values.get(name)) is not None), None)


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *outer, last = key.split("/")
        section = nested
        for name in outer:
            inner = section.setdefault(name, {})
            section = inner if isinstance(inner, dict) else {}
        section[last] = value
    return nested
