"""The training loop of one worker."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from ..comm import Comm
from ..strategies import Batch, Strategy, Sync
from ..tasks.base import Split
from ..tasks.partition import Partition
from . import memory
from .errors import DivergedError
from .meters import Meter
from .stop import StopAgreement


@dataclass
class Job:
    """All that one worker's loop works with."""

    strategy: Strategy
    sync: Sync
    comm: Comm
    replica: int
    train: Split
    partition: Partition
    device: torch.device
    seed: int
    start: int  # the first step
    steps: int  # the step to end before
    meter: Meter
    stop: StopAgreement
    after_step: Callable[[int, float | None], None]  # (steps done, loss): records, evaluations, checkpoints
    activations: int = field(default=0)  # measured in the first step


def train(job: Job) -> int:
    """Train; returns the number of steps done, less than `steps` when the run was asked to stop."""
    for step in range(job.start, job.steps):
        if job.stop.before(step, job.meter.last):
            return step
        batch_size = job.partition.sizes(step)[job.replica]
        if batch_size == 0 and not job.sync.synchronous:
            continue  # nothing to push
        torch.manual_seed(step_seed(job.seed, step, job.comm.rank))
        account = memory.activations(job.strategy.module) if step == job.start else nullcontext()
        with job.meter.step(batch_size), account as activations:
            batch = take(job, step)
            job.sync.begin(batch)
            loss = job.strategy.forward_backward(batch)
            job.sync.update()
        if activations is not None:
            job.activations = activations.peak
        value = None if loss is None else loss.item()
        if value is not None and not math.isfinite(value):
            raise DivergedError(
                f"worker {job.comm.rank} diverged at step {step}: the loss is {value}; a smaller optimizer.lr may help"
            )
        job.after_step(step + 1, value)
    return job.steps


def take(job: Job, step: int) -> Batch:
    """This replica's batch of `step`, on the device."""
    indices = job.partition.indices(step, job.replica)
    inputs, targets = job.train.inputs[indices].to(job.device), job.train.targets[indices].to(job.device)
    return Batch(inputs, targets, total=sum(job.partition.sizes(step)))


def step_seed(seed: int, step: int, rank: int) -> int:
    """A worker's randomness in a step depends on nothing else, so that a resumed run repeats it."""
    return (seed * 1_000_003 + step) * 65_537 + rank
