"""strategy=zero against a script that uses DeepSpeed by itself for the same work, in runs of both in turn."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .measure import Outcome, alternate

STEPS, BATCH = 40, 32
WAYS = ((2, "none"), (3, "none"), (3, "all"))  # stage, offload
SCRIPT = Path(__file__).with_name("deepspeed_script.py")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
PATIENCE = 1800  # seconds for a run, and what DeepSpeed compiles before it


def zero_against_deepspeed(rounds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for stage, offload in WAYS:
        name = f"zero step, stage {stage}, offload={offload}, 2 workers: gpt, 0.9 M parameters, batch {BATCH}"
        if offload != "none" and shutil.which("g++") is None:
            print(f"{name}: left out, there is no g++ to compile CPU Adam with", file=sys.stderr)
            continue
        outcomes.append(
            alternate(
                name,
                lambda s=stage, o=offload: _ours(s, o),
                lambda s=stage, o=offload: _bare(s, o),
                "a bare DeepSpeed script",
                "<= 1.03",
                rounds,
            )
        )
    return outcomes


def _ours(stage: int, offload: str) -> float:
    more = (f"strategy.stage={stage}", f"strategy.offload={offload}", f"batch_size={BATCH}", f"steps={STEPS}")
    return train("strategy=zero", "model=gpt", *more, f"warmup={STEPS // 4}")["step_time"]["median"] * 1e3


def train(*overrides: str) -> dict[str, Any]:
    """The summary of a run on two workers of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        everywhere = ("data=text", "optimizer=adam", "tracking=none", "checkpoint.every=0", "evaluate.every=1000")
        two = ("hardware.workers=2", "hardware.threads=1", "epochs=1000")
        paceline = str(Path(sys.executable).with_name("paceline"))
        run_in([paceline, "train", "--name", "timed", *everywhere, *two, *overrides], folder)
        return json.loads((Path(folder) / "runs" / "timed" / "summary.json").read_text())


def _bare(stage: int, offload: str) -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryDirectory() as folder:
        printed = run_in([*torchrun, str(SCRIPT), str(stage), offload, str(STEPS), str(BATCH)], folder)
    return float(printed.splitlines()[-1])


def run_in(command: list[str], folder: str) -> str:
    """What it printed. Raises `RuntimeError` with the end of what it said when it fails."""
    ended = subprocess.run(command, cwd=folder, env=ONE_THREAD, capture_output=True, text=True, timeout=PATIENCE)
    if ended.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}"
        )
    return ended.stdout
