"""Identifies this machine, as far as its speed depends on it."""

import os
import platform
from pathlib import Path

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
