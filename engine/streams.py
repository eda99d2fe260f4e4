"""What the streams of a worker's GPU do in a few steps, as torch's profiler has it: kernels, copies, nccl."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

LEFT_OUT, STEPS = 2, 3  # the first steps, in which memory is taken and kernels are chosen; those that are kept
_ACTIVITIES = {"cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}


@contextmanager
def streams(trace: Path | None, rank: int, device: torch.device) -> Iterator[Callable[[], None]]:
    """Writes `STEM-streams-RANK.json` beside the trace, of a worker on a GPU. Yields what to call after each step."""
    activities = _ACTIVITIES.get(device.type)
    if trace is None or activities is None:
        yield lambda: None
        return
    file = str(trace.with_name(f"{trace.stem}-streams-{rank}.json"))
    steps = schedule(skip_first=LEFT_OUT, wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(
        activities=activities, schedule=steps, on_trace_ready=lambda done: done.export_chrome_trace(file)
    ) as of:
        yield of.step
