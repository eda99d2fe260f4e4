"""One CUDA card: the largest GPT that it trains, and how fast GPTs of 1, 4 and 10 billion parameters are.

Without offload and with strategy=zero strategy.offload=all, in bf16, blocks recomputed. A model is tried by training
it for a few steps in a process of its own: it fits when that ends well. TFLOP/s count 6 flops a parameter and token
(forward 2, backward 4), without what recomputation adds, as papers do. Ren et al. 2021 (arXiv 2101.06840), figure 7,
have 40 TFLOP/s at 10 billion parameters on one V100 of 32 GB.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.engine import prepare

STEPS, BATCH, CONTEXT = 14, 8, 1024  # 2 steps are left out, and a figure needs 10
PATIENCE = 1800  # seconds for a run
BF16 = ("strategy=zero", "precision=bf16", "optimizer=adam")
WITHOUT, WITH = (*BF16, "strategy.stage=0"), (*BF16, "strategy.stage=3", "strategy.offload=all")
LADDER = [(4, 512), (8, 768), (12, 1024), (16, 1536), (24, 2048), (32, 2560), (32, 3072), (32, 4096), (40, 5120),
          (48, 6144), (64, 6144), (64, 8192)]  # layers, width  # fmt: skip
SPEEDS = ("gpt_1b", "gpt_4b", "gpt_10b")
PUBLISHED = {"gpt_10b": 40.0}  # TFLOP/s: ZeRO-Offload on one V100


@dataclass(frozen=True)
class Trained:
    """`parameters`: how many; a step's `tokens` and `seconds`."""

    parameters: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def teraflops(self) -> float:
        return 6 * self.parameters * self.tokens_per_second / 1e12


def train(device: str, context: int, *overrides: str) -> Trained | None:
    """A few steps on one worker; None where that does not end well, which is how too large a model ends."""
    everywhere = (
        "data=text", f"data.context={context}", "model.recompute=true", "data.limit=64", f"batch_size={BATCH}",
        f"steps={STEPS}", "epochs=1000", "measure.after=2", "tracking=none", "checkpoint.every=0",
        "evaluate.every=1000",
        f"hardware.device={device}", "hardware.workers=1", "hardware.timeout=1200",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("paceline")), "train", "--name", "timed", *everywhere, *overrides]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
        if ended.returncode == 2:  # not the card's fault
            raise RuntimeError(ended.stderr)
        if ended.returncode != 0:
            return None
        summary = json.loads((Path(folder) / "runs" / "timed" / "summary.json").read_text())
    parts = prepare([*everywhere, *overrides]).plan().parts
    return Trained(sum(part.parameters for part in parts), BATCH * context, summary["step_time"]["median"])


def largest(how: tuple[str, ...], device: str, context: int) -> Trained | None:
    """The largest model of the ladder that trains."""
    found = None
    for layers, width in LADDER:
        shape = (f"model.n_layer={layers}", f"model.width={width}", f"model.n_head={width // 64}")
        trained = train(device, context, *how, "model=gpt_1b", *shape)
        if trained is None:
            return found
        found = trained
    return found


def cuda_speed() -> str:
    """A line for each figure, or why there is none."""
    if not torch.cuda.is_available():
        return "CUDA: left out, there is no device here"
    lines = [f"CUDA: {torch.cuda.get_device_name(0)}, bf16, batch {BATCH} of {CONTEXT} tokens, blocks recomputed"]
    for name, how in (("without offload", WITHOUT), ("strategy.offload=all", WITH)):
        most = largest(how, "cuda", CONTEXT)
        lines.append(f"  largest GPT of the ladder, {name}: " + (f"{most.parameters / 1e9:.2f} B" if most else "none"))
    for model in SPEEDS:
        for name, how in (("without offload", WITHOUT), ("strategy.offload=all", WITH)):
            trained = train("cuda", CONTEXT, *how, f"model={model}")
            said = (
                f"{trained.tokens_per_second:,.0f} tokens/s, {trained.teraflops:.1f} TFLOP/s"
                if trained
                else "does not fit"
            )
            beside = f" (ZeRO-Offload on one V100: {PUBLISHED[model]:.0f})" if model in PUBLISHED else ""
            lines.append(f"  {model}, {name}: {said}{beside}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(cuda_speed())
