"""Times how long a user waits: for help, for a dry run, for the first run of a process and for its second."""

import subprocess
import sys
import tempfile
from pathlib import Path

from .measure import Outcome, process_milliseconds

TWICE = """
import sys, time
from paceline import engine
overrides = ["tracking=none", "steps=2", "checkpoint.every=0"]
for name in ("first", "second"):
    start = time.perf_counter()
    engine.run(overrides, name=name, root=sys.argv[1], quiet=True)
    print((time.perf_counter() - start) * 1e3)
"""


def start_times(runs: int) -> list[Outcome]:
    paceline = str(Path(sys.executable).with_name("paceline"))
    python = process_milliseconds([sys.executable, "-c", "pass"], runs)
    first, second = _twice(max(runs // 2, 1))
    return [
        Outcome(
            "paceline --help",
            process_milliseconds([paceline, "--help"], runs),
            python,
            "python -c pass",
            target="< 300 ms",
        ),
        Outcome("paceline train strateg=x", _refused(paceline, runs), target="< 1000 ms"),
        Outcome(
            "paceline train --dry-run",
            process_milliseconds([paceline, "train", "--dry-run"], runs),
            process_milliseconds([sys.executable, "-c", "import torch"], runs),
            "python -c 'import torch'",
            target="<= peer + 500 ms",
        ),
        Outcome("second run in one process", second, first, "its first run", second / first),
    ]


def _refused(paceline: str, runs: int) -> float:
    return process_milliseconds(["sh", "-c", f"! {paceline} train strateg=x"], runs)


def _twice(runs: int) -> tuple[float, float]:
    times: list[tuple[float, float]] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            printed = subprocess.run(
                [sys.executable, "-c", TWICE, folder], check=True, capture_output=True, text=True
            ).stdout.split()
        times.append((float(printed[0]), float(printed[1])))
    times.sort()
    return times[len(times) // 2]
