"""The CPU time of `paceline compare` over many run directories: two real runs, copied with other seeds, rates, figures.

A copy has every file of a run that a comparison reads, as a run writes it, checksums included. Of each five, only the
seed, and what was measured, differs.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline.tracking.checksums import marked
from paceline.tracking.files import read_json
from paceline.tracking.run_directory import RunDirectory

from .measure import Outcome
from .zero import run_in

SIZES = (1_000, 5_000)
SEEDS = 5
ORIGINALS = ("bsp", "asp")
TINY = ("epochs=4", "hardware.threads=1", "checkpoint.every=0", "tracking=none")
FORMS = {"compare": [], "compare --format json": ["--format", "json"], "compare --html": ["--html", "report.html"]}
TARGET = "<= 3000 ms"
PACELINE = str(Path(sys.executable).with_name("paceline"))


def compare_many(rounds: int) -> list[Outcome]:
    """Medians of the CPU time, of user and system, of whole commands; `peer` is the first one over new directories."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for sync in ORIGINALS:
            run_in([PACELINE, "train", "--name", sync, f"sync={sync}", *TINY], folder)
        for size in SIZES:
            place = Path(folder) / f"{size}-runs"
            write_copies([Path(folder) / "runs" / sync for sync in ORIGINALS], place / "runs", size)
            for form, options in FORMS.items():
                first, *others = [_cpu_milliseconds([PACELINE, "compare", *options], place) for _ in range(rounds + 1)]
                target = TARGET if size == max(SIZES) and not options else ""
                name = f"{form}, {size:,} runs, CPU time"
                outcomes.append(Outcome(name, statistics.median(others), first, "the first time", target=target))
    return outcomes


def write_copies(originals: list[Path], root: Path, count: int) -> None:
    """`SEEDS` of each of so many learning rates."""
    runs = [RunDirectory(path) for path in originals]
    draw = random.Random(0)
    for number in range(count):
        setting, seed = divmod(number, SEEDS)
        _write_copy(runs[setting % len(runs)], root / f"setting-{setting:04d}-seed-{seed}", setting, seed, draw)


def _write_copy(original: RunDirectory, path: Path, setting: int, seed: int, draw: random.Random) -> None:
    path.mkdir(parents=True)
    copy = RunDirectory(path)
    *lines, _ = original.config.read_text().splitlines(keepends=True)  # the last is the checksum
    changed = {"name": path.name, "seed": seed, "    lr": f"{0.001 * (setting + 1):.3f}"}
    keys = [line.partition(":")[0] for line in lines]
    told = [f"{key}: {changed[key]}\n" if key in changed else line for key, line in zip(keys, lines, strict=True)]
    copy.config.write_text(marked("".join(told)))
    copy.environment.write_bytes(original.environment.read_bytes())
    copy.metrics.write_text(original.metrics.read_text().replace(f'"name":"{original.name}"', f'"name":"{path.name}"'))
    summary: dict[str, Any] = read_json(original.summary)
    summary |= {"name": path.name, "seed": seed}
    summary |= {key: summary[key] * draw.uniform(0.9, 1.1) for key in ("throughput", "accuracy", "loss", "seconds")}
    copy.summary.write_text(json.dumps(summary, indent=2) + "\n")


def _cpu_milliseconds(command: list[str], folder: Path) -> float:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1e3
