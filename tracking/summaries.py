"""A run's summary and the row that a comparison makes of it, in both directions."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from ..conf.groups import SHOWN
from .columns import BY_KEY, MEMORY_KINDS, METRICS, ONE_WORKER, shortened
from .errors import CorruptRunError
from .records import EvaluationRecord, Measured
from .records import Summary as WrittenSummary
from .run_directory import Record, RunDirectory

Row = dict[str, Any]
Summary = dict[str, Any]

LONGEST = 1000  # characters of a name; W&B's are of 128 at most
LONGEST_REASON = 100_000


@dataclass(frozen=True)
class SummaryField:
    """Locates the value of a row's key in a summary."""

    name: str
    section: str = ""  # of the summary; "": none
    factor: float | None = None  # from the summary's unit to the row's; None: none
    text: bool = False
    longest: int = LONGEST  # characters of a text


FIELDS: dict[str, SummaryField] = {
    "run": SummaryField("name", text=True),
    "status": SummaryField("status", text=True),
    **{group.name: SummaryField(group.name, text=True) for group in SHOWN},
    "workers": SummaryField("workers"),
    "servers": SummaryField("servers"),
    "effective_batch": SummaryField("effective_batch"),
    "throughput_samples_per_s": SummaryField("throughput"),
    "step_ms": SummaryField("median", "step_time", 1e3),
    "predicted_step_ms": SummaryField("predicted_step_ms"),
    "compute_ms": SummaryField("compute", "step_time", 1e3),
    "communication_ms": SummaryField("communication", "step_time", 1e3),
    "waiting_ms": SummaryField("waiting", "step_time", 1e3),
    "device_peak_mib": SummaryField("device_peak", "memory", 1 / 2**20),
    "peak_memory_mib": SummaryField("process_peak", "memory", 1 / 2**20),
    **{f"{kind}_mib": SummaryField(kind, "memory", 1 / 2**20) for kind in MEMORY_KINDS},
    "bytes_per_step": SummaryField("bytes_per_step", "wire"),
    "megabytes": SummaryField("total", "wire", 1e-6),
    "messages": SummaryField("messages", "wire"),
    "staleness_mean": SummaryField("mean", "staleness"),
    "staleness_max": SummaryField("max", "staleness"),
    "dropped_gradients": SummaryField("dropped"),
    "left_rounds": SummaryField("left"),
    "given_up_rounds": SummaryField("given_up"),
    "cut_share": SummaryField("cut_share"),
    "skipped_steps": SummaryField("skipped_steps"),
    "compile_s": SummaryField("compile_s"),
    "worker_failures": SummaryField("worker_failures"),
    "lost_work_s": SummaryField("lost_work_s"),
    "downtime_s": SummaryField("downtime_s"),
    "checkpoint_s": SummaryField("checkpoint_s"),
    "goodput": SummaryField("goodput"),
    "consensus_distance": SummaryField("consensus_distance"),
    "noise_scale": SummaryField("noise_scale", "metrics"),
    "client_mean": SummaryField("client_mean", "metrics"),
    "client_worst": SummaryField("client_worst", "metrics"),
    "client_spread": SummaryField("client_spread", "metrics"),
    "personal_mean": SummaryField("personal_mean", "metrics"),
    "personal_worst": SummaryField("personal_worst", "metrics"),
    "personal_spread": SummaryField("personal_spread", "metrics"),
    "weights_kept": SummaryField("weights_kept"),
    "backdoor_success": SummaryField("backdoor_success"),
    "model_bytes": SummaryField("model_bytes"),
    "epsilon": SummaryField("epsilon"),
    "epsilon_as_dealt": SummaryField("epsilon_as_dealt"),
    "loss": SummaryField("loss"),
    "accuracy": SummaryField("accuracy"),
    "robust_accuracy": SummaryField("robust_accuracy", "metrics"),
    "target_reached": SummaryField("target_reached", "metrics"),
    "r2": SummaryField("r2"),
    "purity": SummaryField("purity", "metrics"),
    "time_to_accuracy_s": SummaryField("time_to_accuracy"),
    "disturbed": SummaryField("disturbed", text=True, longest=LONGEST_REASON),
    "why": SummaryField("reason", text=True, longest=LONGEST_REASON),
}
_MESH = SummaryField("mesh", text=True)
_USUAL = {group.name: group.usual for group in SHOWN if group.usual}
_WRITTEN = {each.name for written in (EvaluationRecord, WrittenSummary, Measured) for each in fields(written)}
_WRITTEN |= {"kind", "metric", *(group.name for group in SHOWN)}
_TAKEN = _WRITTEN | {field.name for field in FIELDS.values() if not field.section} - {*METRICS}
_TAKEN -= {"score"}  # its fields stand in its place
_SECTIONS = ("server_memory", *dict.fromkeys(field.section for field in FIELDS.values() if field.section))


def row_of(summary: Summary) -> Row:
    """The summary's values by the keys of `columns.COLUMNS`. Raises ValueError where a value is of another type."""
    row: Row = {}
    sections = {name: _section(summary, name) for name in _SECTIONS} | {"": summary}
    for key, field in FIELDS.items():
        value = sections[field.section].get(field.name)
        if value is not None:
            value = _text(value, field) if field.text else _scaled(value, field.factor)
        row[key] = value
    for key in ("device_peak_mib", "peak_memory_mib"):
        of_servers = _number(sections["server_memory"].get(FIELDS[key].name))
        if of_servers is not None:  # the largest, whichever it is
            row[key] = max(row[key] or 0.0, of_servers / 2**20)
    if row["effective_batch"] == summary.get("batch_size"):
        row["effective_batch"] = None  # as asked
    if row["strategy"] is not None and row["sync"] is not None:  # a run of ours, maybe from before there was the group
        row |= {key: usual for key, usual in _USUAL.items() if row[key] is None}
    told = {key: bool(summary.get(key)) for key in ("modelled", "too_short")}
    row["mesh"] = _mesh(summary.get("mesh"))
    return row | told | {"lost_workers": _count(summary, "lost")}


def summary_from(row: Row) -> Summary:
    """Returns the summary of which `row_of` makes this row; other keys are passed over. Raises ValueError as `row_of`
    does.
    """
    summary: Summary = {key: bool(row.get(key)) for key in ("modelled", "too_short")}
    for key, field in FIELDS.items():
        value = row.get(key)
        if value is None:
            continue
        section = summary.setdefault(field.section, {}) if field.section else summary
        inverse = None if field.factor is None else 1 / field.factor
        section[field.name] = _text(value, field) if field.text else _scaled(value, inverse)
    if row.get("mesh") is not None:
        summary["mesh"] = _mesh(row["mesh"])
    lost = _number(row.get("lost_workers"))
    if lost is not None and math.isfinite(lost):
        summary["lost"] = [None] * min(int(lost), 4096)
    return summary


@dataclass(frozen=True)
class MetricWithoutColumn:
    name: str
    larger_is_better: bool | None  # None: not known


def is_taken(metric: str) -> bool:
    """Returns whether a run has something else under this name, so that no metric may have it."""
    return metric in _TAKEN


def task_metric(summary: Summary) -> MetricWithoutColumn | None:
    """Returns the metric of a run's task that has no column; None: it has one, or is not known."""
    told = summary.get("metric")
    name, larger = (told.get("name"), told.get("larger_is_better")) if isinstance(told, dict) else (None, None)
    if not isinstance(name, str) or len(name) > LONGEST or name in BY_KEY:
        return None
    return MetricWithoutColumn(name, larger if isinstance(larger, bool) else None)


def read(run: RunDirectory, records: list[Record] | None = None) -> Summary:
    """The run's summary, or what its metrics (`records`, if read) tell. Raises CorruptRunError, naming the file."""
    file = run.summary
    try:
        summary = run.read_summary()
        if summary is None:
            file = run.metrics
            summary = from_records(run.name, run.records() if records is None else records)
            if summary.get("status") == "completed":
                summary["reason"] = f"{run.summary.name} is missing"
        if row_of(summary)["run"] is None:
            raise ValueError("it names no run")
    except (ValueError, OSError) as error:
        raise CorruptRunError(f"{file} is damaged: {error}") from None
    return summary


def summary_of(run: RunDirectory, records: list[Record] | None = None) -> Summary:
    """Reads a summary like `read`. A damaged run's has the status `damaged` and the values that its metrics tell."""
    try:
        return read(run, records)
    except CorruptRunError as error:
        status = {"name": run.name, "status": "damaged", "reason": str(error)}
    try:
        summary = from_records(run.name, run.records() if records is None else records) | status
        row_of(summary)
    except (ValueError, OSError, CorruptRunError):
        return status
    return summary


def from_records(name: str, records: list[Record]) -> Summary:
    """Returns the known values of a run without a summary: it still runs, was killed, or the disk is full."""
    summary: Summary = {"name": name, "status": "unfinished", "reason": "it still runs, or was killed"}
    for record in records:
        summary |= _told_by(record)
        metric = task_metric(summary)
        if metric is not None and record.get("kind") == "evaluation":
            summary[metric.name] = record.get(metric.name)
    return summary


def configured(config: dict[str, Any], chosen: Mapping[str, Any] = MappingProxyType({})) -> Summary:
    """Returns the choices of a run of ours. They are all that is known of one that ended before its first record.

    Args:
        chosen: What a sweep chose, by key; for a run without a configuration.
    """
    parts = {group.name: config.get(group.name, chosen.get(group.name)) for group in SHOWN}
    names = {key: part.get("name") if isinstance(part, dict) else part for key, part in parts.items()}
    hardware = config.get("hardware")
    hardware = hardware if isinstance(hardware, dict) else {"workers": chosen.get("hardware.workers")}
    told: Summary = {key: name for key, name in names.items() if isinstance(name, str) and len(name) <= LONGEST}
    if type(hardware.get("workers")) is int:
        told["workers"] = hardware["workers"]
    return told | {"modelled": hardware.get("fabric") == "virtual"}


def _told_by(record: Record) -> Summary:
    match record.get("kind"):
        case "start":
            choices = (group.name for group in SHOWN)
            told = (*choices, "workers", "servers", "modelled", "target_accuracy")
            return {key: record.get(key) for key in told} | {key: record[key] for key in ("metric",) if key in record}
        case "step":
            return {key: record[key] for key in ("loss", "skipped_steps") if key in record}
        case "evaluation":
            told = ("loss", "consensus_distance", "weights_kept", "backdoor_success")
            return {key: record.get(key) for key in (*METRICS, *told)}
        case "end":
            return {"status": record.get("status"), "reason": record.get("reason")}
        case "resume":
            return {"status": "unfinished", "reason": "it still runs, or was killed"}
    return {}


def _mesh(value: Any) -> str | None:
    """`stage 2 x tensor 2` of workers by axis, or as a table has it."""
    if value is None or isinstance(value, str):
        return None if value is None else _text(value, _MESH)
    if not isinstance(value, dict):
        raise ValueError(f"mesh={_quoted(value)} is no mapping")
    sizes = {axis: _number(size) or 0 for axis, size in value.items() if axis != "replica"}
    inner = [f"{axis} {size:.0f}" for axis, size in sizes.items() if size > 1]
    return _text(" x ".join(inner) or ONE_WORKER, _MESH)


def _section(summary: Summary, name: str) -> dict[str, Any]:
    section = summary.get(name)
    if section is not None and not isinstance(section, dict):
        raise ValueError(f"{name}={_quoted(section)} is no mapping")
    return section or {}


def _count(summary: Summary, key: str) -> int | None:
    things = summary.get(key)
    if things is not None and not isinstance(things, list):
        raise ValueError(f"{key}={_quoted(things)} is no list")
    return None if things is None else len(things)


def _quoted(value: Any) -> str:
    return shortened(repr(value))


def _text(value: Any, field: SummaryField) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its {field.name}={_quoted(value)} is no text")
    if len(value) > field.longest:
        raise ValueError(f"its {field.name} has {len(value):,} characters; the most is {field.longest:,}")
    return value


def _number(value: Any) -> float | int | None:
    """A summary's number; JSON files hold NaN and infinities as strings."""
    if isinstance(value, str) and len(value) <= LONGEST:
        return float(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{_quoted(value)} is no number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("a number is too large")
    return value


def _scaled(value: Any, factor: float | None) -> float | int | None:
    value = value if type(value) is float else _number(value)  # as most are
    return value if value is None or factor is None else value * factor
