"""Rows against a baseline's."""

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
    """
    mine, its = entry.row, reference.row
    comparable = all(mine[key] == its[key] for key in (*TRAINED, "modelled"))
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
    found = found if comparable else dict.fromkeys(found)
    is_blurred = its.get("disturbed") and not mine.get("disturbed")
    return found | ({"disturbed": "its baseline was disturbed"} if is_blurred else {})


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def target(entry: Entry) -> Any:
    """The accuracy, or R^2, that it was to reach; a run that failed before it trained knows none."""
    known = (run.summary.get("target_accuracy") for run in entry.runs)
    return next((each for each in known if each is not None), None)
