"""Columns of a comparison that follow from others, from a run's records or from its configuration."""

import math
from typing import Any

from .evaluations import at_target
from .run_data import RunData
from .summaries import Row
from .values import number, plain_number

DERIVED = (
    *("blocked", "dollars", "epochs_to_accuracy", "predicted_error", "rounds_to_accuracy", "steps_to_accuracy"),
    *("time_per_pass_s", "updates_per_second"),
)
OF_RECORDS = (
    "epochs_to_accuracy",
    "rounds_to_accuracy",
    "steps_to_accuracy",
    "time_per_pass_s",
)  # None where a run's records were not read


def derived(run: RunData) -> Row:
    """The value of each of DERIVED; None where it is not known."""
    reached = at_target(run.summary, run.records)
    step = None if reached is None else number(reached.get("step"))
    passes = None if reached is None else number(reached.get("epoch"))
    until = number(run.summary.get("time_to_accuracy"))
    period = number(_section(_section(run.config, "sync"), "knobs").get("period"))
    rate, batch = number(run.summary.get("throughput")), number(run.summary.get("batch_size"))
    took = _section(run.summary, "step_time")
    whole, computed = number(took.get("median")), number(took.get("compute"))
    estimated = number(run.summary.get("predicted_step_ms"))
    estimated = None if estimated is None else estimated / 1e3
    return {
        "blocked": 1 - computed / whole if whole and computed is not None else None,
        "dollars": dollars(run),
        "epochs_to_accuracy": passes,
        "predicted_error": estimated / whole - 1 if whole and estimated else None,
        "rounds_to_accuracy": math.ceil(step / period) if step and period else None,
        "steps_to_accuracy": step,
        "time_per_pass_s": until / passes if until is not None and passes else None,
        "updates_per_second": rate / batch if rate is not None and batch else None,
    }


def dollars(run: RunData) -> float | None:
    """hours of training x hosts x hardware.machine.price_per_hour; None where the configuration tells no price."""
    price = plain_number(_section(_section(run.config, "hardware"), "machine").get("price_per_hour"))
    seconds, workers = plain_number(run.summary.get("seconds")), plain_number(run.summary.get("workers"))
    if price is None or seconds is None or workers is None:
        return None
    return seconds / 3600 * _hosts(run, workers) * price


def _hosts(run: RunData, workers: float) -> int:
    """Returns the number of machines that the run takes.

    On a virtual cluster these are the hosts of its workers and servers. Else they are as many as have a device for
    each worker, or on CPUs the hosts that the run was measured on.
    """
    hardware = _section(run.config, "hardware")
    each, servers = hardware.get("workers_per_host"), plain_number(run.summary.get("servers")) or 0
    if hardware.get("fabric") == "virtual" and isinstance(each, int) and each > 0:
        return math.ceil((workers + servers) / each)
    devices, measured_on = _section(hardware, "machine").get("devices"), run.summary.get("hosts")
    if isinstance(devices, int) and devices > 0 and hardware.get("device") != "cpu":
        return math.ceil(workers / devices)
    return max(len(measured_on), 1) if isinstance(measured_on, list) else 1


def _section(config: dict[str, Any], key: str) -> dict[str, Any]:
    found = config.get(key)
    return found if isinstance(found, dict) else {}
