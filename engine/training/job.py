"""The objects that one worker's loop works with."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...comm import Comm
from ...strategies import Strategy, Sync
from ...strategies.core import staged
from ...strategies.core.accumulation import Accumulation
from ...tasks.base import Readable
from ...tasks.partition import Partition
from ..base.stop import StopAgreement
from ..fabrics.compute import ModelledCompute, RealCompute
from ..features.hook_list import HookList
from .batches import Taking
from .meters import Meter


@dataclass
class Job:
    """All that one worker's loop works with."""

    strategy: Strategy
    sync: Sync
    comm: Comm
    replica: int
    train: Readable
    taking: Taking
    partition: Partition
    device: torch.device
    seed: int
    draws_as: int  # the rank whose random numbers this worker draws: see Mesh.drawing
    start: int  # the first step
    steps: int  # of the whole run
    until: int  # the step to end before: `steps`, but where the model becomes another one before it (phases.py)
    meter: Meter
    stop: StopAgreement | None  # None where the sync mode says when: see `InRounds`
    compute: ModelledCompute | RealCompute
    after_step: Callable[["Job", int, int, float | None], None]  # (steps done before, now, loss): records, ...
    hooks: HookList = field(default_factory=HookList)
    accumulation: Accumulation = field(default_factory=Accumulation)  # with which the strategy was prepared
    training: int = sys.maxsize  # steps after which a schedule of the rate begins anew
    stopped: str | None = None  # why the run ends before its last step; all that step together have it at once
    activations: int = field(default=0)  # measured in the first steps
    took_step: bool = True  # the last step's samples trained the model


def drain(job: Job) -> None:
    """Finishes what the last step left under way, in the time of training."""
    with job.meter.drain():
        staged.drain(job.strategy)
