"""Identifies this machine, as far as its speed depends on it, and reads what else it does."""

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cost.calibration import Calibration


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def here_unlike(calibration: Calibration) -> list[str]:
    """Says in words how this machine differs from the one that was measured."""
    return calibration.differs(platform.node(), cpu_model(), cores())


@dataclass(frozen=True)
class _Counters:
    """Readings of the operating system, of which differences tell what happened between."""

    clock: float
    own: float  # s of processor time of this process
    switches: int  # involuntary context switches of this process
    host: tuple[float, float, float] | None  # s of processor time of all cores: busy, stolen, in all


_begun: _Counters | None = None


def begin() -> None:
    """A measurement begins in this process."""
    global _begun
    _begun = _counters()


def used() -> dict[str, Any]:
    """Returns the fields of `tracking.disturbance.ProcessUse`, since `begin`; empty before it."""
    if _begun is None:
        return {}
    now = _counters()
    host = now.host and _begun.host and [b - a for a, b in zip(_begun.host, now.host, strict=True)]
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = None
    return {
        "host": platform.node(),
        "process": os.getpid(),
        "seconds": now.clock - _begun.clock,
        "own": now.own - _begun.own,
        "switches": now.switches - _begun.switches,
        "busy": host and host[0],
        "stolen": host and host[1],
        "all": host and host[2],
        "load": load,
        "cores": os.cpu_count() or 1,
    }


def _counters() -> _Counters:
    of_process = resource.getrusage(resource.RUSAGE_SELF)
    own = of_process.ru_utime + of_process.ru_stime
    return _Counters(time.monotonic(), own, of_process.ru_nivcsw, _host())


def _host() -> tuple[float, float, float] | None:
    """None where there is no /proc/stat."""
    try:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()
        user, nice, system, idle, waiting, *interrupts = (int(word) for word in words[1:9])
    except (OSError, ValueError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    busy = user + nice + system + sum(interrupts)
    stolen = interrupts[2] if len(interrupts) > 2 else 0
    return busy / tick, stolen / tick, (busy + idle + waiting) / tick
