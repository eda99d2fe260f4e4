"""strategy=zero against a script that uses DeepSpeed by itself for the same work, in slices of seconds in turn."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.strategies.external.deepspeed_ops import build_ops
from paceline.tracking.moving_lines import MovingLines

from .measure import Outcome
from .slices import SAID, Timed, in_slices

BATCH = 32
STEPS = 1_000_000  # more than are looked at
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
        if offload != "none":
            build_ops(MovingLines())  # or both sides would, at once
        with (
            tempfile.TemporaryDirectory() as a,
            tempfile.TemporaryDirectory() as b,
            _ours(stage, offload, Path(a)) as ours,
            _bare(stage, offload, Path(b)) as bare,
        ):
            outcomes.append(in_slices(name, ours, bare, "a bare DeepSpeed script", "<= 1.03", rounds))
    return outcomes


def _ours(stage: int, offload: str, folder: Path) -> Timed:
    paceline = str(Path(sys.executable).with_name("paceline"))
    what = ("strategy=zero", f"strategy.stage={stage}", f"strategy.offload={offload}", "model=gpt", "data=text")
    everywhere = (
        f"batch_size={BATCH}",
        "optimizer=adam",
        "tracking=none",
        "checkpoint.every=0",
        f"evaluate.every={STEPS}",
    )
    two = ("hardware.workers=2", "hardware.threads=1", f"epochs={STEPS}", f"steps={STEPS}")
    metrics = folder / "runs" / "timed" / "metrics.jsonl"

    def steps() -> list[float]:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return [record["step_time"] * 1e3 for record in map(json.loads, lines) if record["kind"] == "step"]

    return Timed([paceline, "train", "--name", "timed", *what, *everywhere, *two], folder, ONE_THREAD, steps)


def _bare(stage: int, offload: str, folder: Path) -> Timed:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    def steps() -> list[float]:
        lines = (folder / SAID).read_text().splitlines()
        return [float(line.removeprefix("step ")) for line in lines if line.startswith("step ")]

    return Timed([*torchrun, str(SCRIPT), str(stage), offload, str(BATCH)], folder, ONE_THREAD, steps)


def run_in(command: list[str], folder: str) -> str:
    """Returns the output of the command. Raises `RuntimeError` with the end of its output when it fails."""
    ended = subprocess.run(command, cwd=folder, env=ONE_THREAD, capture_output=True, text=True, timeout=PATIENCE)
    if ended.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}"
        )
    return ended.stdout
