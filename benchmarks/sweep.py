"""Times a trial of a sweep beside its training loop: ours, a fresh torchrun for each, and Hydra's own multirun.

Two workers of one thread train digits for one epoch. A sweep's overhead is counted from the end of its first trial's
loop to the end of its last one's, so that starting the command is left out; a torchrun's is its whole time beside the
loop.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from .measure import Outcome, alternate
from .zero import run_in

TRIALS, ALONE = 8, 2  # of a sweep; started one by one
RATES = [f"{0.01 * (i + 1):.2f}" for i in range(TRIALS)]
TINY = ("epochs=1", "hardware.threads=1", "checkpoint.every=0", "tracking=none")
ROOT = Path(__file__).parents[1]


def sweep_overhead(rounds: int) -> list[Outcome]:
    name = "overhead of a sweep's trial: digits, 2 workers, one epoch"
    return [
        alternate(name, _ours, _torchrun, "a fresh torchrun for each trial", "ours <= 500 ms", rounds),
        alternate(name, _ours, _multirun, "Hydra's multirun of a DDP script", "", rounds),
    ]


def _ours() -> float:
    paceline = str(Path(sys.executable).with_name("paceline"))
    with tempfile.TemporaryDirectory() as folder:
        run_in([paceline, "sweep", "--name", "timed", f"optimizer.lr={','.join(RATES)}", *TINY], folder)
        files = sorted(Path(folder).glob("runs/timed/*/summary.json"))
        ends = [(file.stat().st_mtime, json.loads(file.read_text())["seconds"]) for file in files]
    return _beside(ends)


def _multirun() -> float:
    app = [sys.executable, "-m", "benchmarks.hydra_app", "--multirun"]
    with tempfile.TemporaryDirectory() as folder:
        rates = f"+lr={','.join(RATES)}"
        printed = run_in([*app, rates, "+epochs=1", f"hydra.sweep.dir={folder}"], str(ROOT))
    said = [line.split() for line in printed.splitlines() if line.startswith("loop ")]
    return _beside([(float(end), float(seconds)) for _, seconds, end in said])


def _beside(ends: list[tuple[float, float]]) -> float:
    """Milliseconds a trial, from (when its loop ended, seconds that the loop took), in order."""
    assert len(ends) == TRIALS
    (first, _), *others = ends
    return (others[-1][0] - first - sum(seconds for _, seconds in others)) / len(others) * 1e3


def _torchrun() -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    paceline = str(Path(sys.executable).with_name("paceline"))
    beside: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES[:ALONE]:
            start = time.perf_counter()
            run_in([*torchrun, paceline, "train", "--name", f"r{rate}", f"optimizer.lr={rate}", *TINY], folder)
            wall = time.perf_counter() - start
            summary = json.loads((Path(folder) / "runs" / f"r{rate}" / "summary.json").read_text())
            beside.append(wall - summary["seconds"])
    return statistics.mean(beside) * 1e3
