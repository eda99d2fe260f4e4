"""Rows against a baseline's."""

from collections.abc import Sequence
from typing import Any

from .columns import TRAINED
from .groups import Entry
from .summaries import Row


def ratios(entry: Entry, reference: Entry) -> Row:
    """The row against the baseline's; of groups, the ratio of their means.

    speedup_throughput = its throughput / the baseline's
    speedup_time_to_accuracy = the baseline's time to accuracy / its, where both aimed at the same accuracy
    bytes_ratio = its bytes a step / the baseline's
    memory_ratio = its peak memory / the baseline's: of their GPUs where one of them has a GPU, else of their hosts
    dollars_ratio = its dollars / the baseline's
    All are None between runs of another model, data set or task, and between modelled and measured ones.
    no_speedup = why a speed-up is None
    """
    mine, its = entry.row, reference.row
    why = _why_incomparable(mine, its)
    on_gpu = any(each["device_peak_mib"] is not None for each in (mine, its))
    memory = "device_peak_mib" if on_gpu else "peak_memory_mib"
    same_target = target(entry) == target(reference)
    found = {
        "speedup_throughput": ratio(mine["throughput_samples_per_s"], its["throughput_samples_per_s"]),
        "speedup_time_to_accuracy": ratio(its["time_to_accuracy_s"], mine["time_to_accuracy_s"]),
        "bytes_ratio": ratio(mine["bytes_per_step"], its["bytes_per_step"]),
        "memory_ratio": ratio(mine[memory], its[memory]),
        "dollars_ratio": ratio(mine["dollars"], its["dollars"]),
    }
    if not same_target:
        found["speedup_time_to_accuracy"] = None
    reasons = [why] if why else [_why_no_rate(mine, its), _why_no_time(entry, reference)]
    of_ratios: Row = dict.fromkeys(found) if why else dict(found)
    of_ratios["no_speedup"] = "; ".join(filter(None, reasons)) or None
    is_blurred = its.get("disturbed") and not mine.get("disturbed")
    return of_ratios | ({"disturbed": "its baseline was disturbed"} if is_blurred else {})


def _why_incomparable(mine: Row, its: Row) -> str:
    key = next((key for key in TRAINED if mine[key] != its[key]), None)
    if key is not None:
        return f"its {key} is {mine[key]}, and the baseline's {its[key]}"
    kinds = ("measured", "modelled") if its["modelled"] else ("modelled", "measured")
    return "" if mine["modelled"] == its["modelled"] else f"it is {kinds[0]}, and the baseline {kinds[1]}"


def _why_no_rate(mine: Row, its: Row) -> str:
    for row, what in ((mine, "it"), (its, "the baseline")):
        if not row["throughput_samples_per_s"]:
            return f"{what} {'was too short to measure' if row['too_short'] else 'has no throughput'}"
    return ""


def _why_no_time(entry: Entry, reference: Entry) -> str:
    """Says so where one of the two has reached its target."""
    key, aims = "time_to_accuracy_s", (target(entry), target(reference))
    without = [name for each, name in ((entry, "it"), (reference, "the baseline")) if each.row[key] is None]
    if len(without) == 2:
        return ""
    if None not in aims and aims[0] != aims[1]:
        return f"its target_accuracy is {aims[0]}, and the baseline's {aims[1]}"
    return f"{without[0]} has not reached target_accuracy" if without else ""


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def note_on(table: Sequence[Row]) -> str:
    """Returns a sentence on the rows of a comparison that lack a speed-up; "": there are none."""
    runs: dict[str, list[str]] = {}
    for row in table:
        if row.get("no_speedup"):
            runs.setdefault(row["no_speedup"], []).append(str(row["run"]))
    told = [f"{', '.join(names[:4])}{', ...' * (len(names) > 4)} ({why})" for why, names in runs.items()]
    return f"a speed-up is missing: {'; '.join(told)}" if told else ""


def target(entry: Entry) -> Any:
    """The accuracy, or R^2, that it was to reach; a run that failed before it trained knows none."""
    known = (run.summary.get("target_accuracy") for run in entry.runs)
    return next((each for each in known if each is not None), None)
