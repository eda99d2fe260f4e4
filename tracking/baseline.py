"""Rows against a baseline's, and what a run would cost to rent."""

import math
from typing import Any

from .columns import TRAINED
from .groups import Entry
from .sources import RunData
from .summaries import Row


def dollars(run: RunData) -> float | None:
    """hours of training x hosts x hardware.machine.price_per_hour; hosts = ceil(workers / devices of a machine).

    A machine without devices is one host. None where the run's configuration tells no price.
    """
    hardware = run.config.get("hardware")
    machine = hardware.get("machine") if isinstance(hardware, dict) else None
    if not isinstance(machine, dict):
        return None
    price, devices = _number(machine.get("price_per_hour")), machine.get("devices")
    seconds, workers = _number(run.summary.get("seconds")), _number(run.summary.get("workers"))
    if price is None or seconds is None or workers is None:
        return None
    hosts = math.ceil(workers / devices) if isinstance(devices, int) and devices > 0 else 1
    return seconds / 3600 * hosts * price


def ratios(entry: Entry, reference: Entry) -> Row:
    """The row against the baseline's; of groups, the ratio of their means.

    speedup_throughput = its throughput / the baseline's
    speedup_time_to_accuracy = the baseline's time to accuracy / its, where both aimed at the same accuracy
    bytes_ratio = its bytes a step / the baseline's
    memory_ratio = its peak memory / the baseline's
    dollars_ratio = its dollars / the baseline's
    All are None between runs of another model, data set or task, and between modelled and measured ones.
    """
    mine, its = entry.row, reference.row
    comparable = all(mine[key] == its[key] for key in (*TRAINED, "modelled"))
    same_target = target(entry) == target(reference)
    found = {
        "speedup_throughput": ratio(mine["throughput_samples_per_s"], its["throughput_samples_per_s"]),
        "speedup_time_to_accuracy": ratio(its["time_to_accuracy_s"], mine["time_to_accuracy_s"]),
        "bytes_ratio": ratio(mine["bytes_per_step"], its["bytes_per_step"]),
        "memory_ratio": ratio(mine["peak_memory_mib"], its["peak_memory_mib"]),
        "dollars_ratio": ratio(mine["dollars"], its["dollars"]),
    }
    if not same_target:
        found["speedup_time_to_accuracy"] = None
    return found if comparable else dict.fromkeys(found)


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def target(entry: Entry) -> Any:
    """The accuracy, or R^2, that it was to reach; a run that failed before it trained knows none."""
    known = (run.summary.get("target_accuracy") for run in entry.runs)
    return next((each for each in known if each is not None), None)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
