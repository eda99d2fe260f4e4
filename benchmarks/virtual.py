"""Measures the virtual cluster: worker-steps a second on one core, and its memory, by the number of workers.

A run of 20 steps and a longer one, by as many worker-steps whatever the number of workers: the difference is steps
alone, without what starting costs. A model of 9,610 parameters
and one sample a step, so that what is timed is the fabric and the sync mode rather than the model.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .measure import Outcome

STEPS = 20
MORE = 20_480  # worker-steps
FEWEST, MIDDLE, MOST = 64, 256, 1024
MODES = ("bsp", "gossip", "ssp")


def virtual_speed(rounds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for sync in MODES:
        few, _ = _milliseconds(sync, FEWEST, rounds)
        middle, _ = _milliseconds(sync, MIDDLE, rounds)
        most, memory = _milliseconds(sync, MOST, rounds)
        outcomes.append(Outcome(f"virtual {sync}: a worker-step of {MIDDLE}, one core", middle, target="<= 1 ms"))
        by_log = math.log2(MOST) / math.log2(FEWEST)
        name = f"virtual {sync}: a worker-step of {MOST}, {memory:.2f} GiB of 4"
        outcomes.append(Outcome(name, most, few, f"of {FEWEST}", most / few, target=f"<= {by_log:.2f}: n log n"))
    return outcomes


def _milliseconds(sync: str, workers: int, rounds: int) -> tuple[float, float]:
    """(For a worker's step, the largest process in GiB.)"""
    times: list[float] = []
    memory = 0.0
    for _ in range(rounds):
        short, _ = _run(sync, workers, STEPS)
        long, memory = _run(sync, workers, STEPS + MORE // workers)
        times.append((long - short) * 1e3 / MORE)
    return statistics.median(times), memory


def _run(sync: str, workers: int, steps: int) -> tuple[float, float]:
    """(Wall seconds, GiB.)"""
    paceline = str(Path(sys.executable).with_name("paceline"))
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            f"sync={sync}", f"hardware.workers={workers}", f"steps={steps}", "epochs=1000", "evaluate.every=1000",
            "model.hidden=[128]", "batch_size=1", "hardware=virtual", "tracking=none", "checkpoint.every=0",
        ]  # fmt: skip
        start = time.perf_counter()
        subprocess.run(
            ["taskset", "-c", str(core), paceline, "train", "--name", "timed", *arguments],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - start
        summary = json.loads((Path(folder) / "runs" / "timed" / "summary.json").read_text())
    return seconds, summary["memory"]["process_peak"] / 2**30
