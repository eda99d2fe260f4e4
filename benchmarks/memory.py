"""Peak memory by kind: strategy=zero, stage 3 with offload, beside data parallel, a GPT of 114 million parameters.

Two workers on this host; where that has no GPU, "device" and "host" are the same memory, and the account alone tells
them apart.
"""

import json
import sys
import tempfile
from pathlib import Path

from .zero import run_in

SETTINGS = (
    "model=gpt_100m", "data=text", "data.context=1024", "batch_size=1", "steps=2", "optimizer=adam", "tracking=none",
    "hardware.workers=2", "hardware.threads=1", "hardware.timeout=600", "checkpoint.every=0",
)  # fmt: skip
BUCKET = 10_000_000  # entries; DeepSpeed's default, 5e8, is more than this model has
RUNS = {
    "data-parallel": ("strategy=data_parallel",),
    "zero-3-all": ("strategy=zero", "strategy.stage=3", "strategy.offload=all"),
    "zero-3-all-small-bucket": ("strategy=zero", "strategy.stage=3", "strategy.offload=all", "strategy.config=ds.json"),
}


def memory_table() -> str:
    """Returns the output of `paceline compare --memory` for the runs."""
    paceline = str(Path(sys.executable).with_name("paceline"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ds.json").write_text(json.dumps({"zero_optimization": {"reduce_bucket_size": BUCKET}}))
        for name, how in RUNS.items():
            run_in([paceline, "train", "--name", name, *SETTINGS, *how], folder)
        return run_in([paceline, "compare", "--memory", *RUNS], folder)


if __name__ == "__main__":
    print(memory_table())
