"""What one worker works with: the objects that an experiment names, made and checked together by build.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from ...strategies import Strategy, Sync
from ...strategies.adapt import Adapt
from ...strategies.averages import Average
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.loss import Loss
from ...strategies.precision import Precision
from ...strategies.schedules import Schedule
from ...tasks.adversarial.training import AdversarialTraining
from ...tasks.base import Data, Readable
from ...tasks.losses.base import Task
from ...tasks.partition import Partition, Partitioner
from ..fabrics.compute import ComputeModel
from ..fabrics.kinds import Fabric
from ..fabrics.layout import Layout
from ..fabrics.stragglers import Stragglers
from .calling import Callbacks
from .distilling import Teacher

Given = dict[str, object]  # by group, what a strategy and a sync mode are given
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class Parts:
    """`load`, `deal` and `compute` are shared by the workers of a process."""

    data: Data
    task: Task
    load: Callable[[], tuple[Readable, Readable]]
    partitioner: Partitioner
    deal: Callable[[], Partition]
    schedule: Schedule
    stragglers: Stragglers
    fabric: Fabric
    compute: ComputeModel | None  # where it is modelled
    strategy: Strategy
    sync: Sync
    accumulation: Accumulation  # of a step; each worker has its own
    of_groups: Given  # what they were given
    make_pair: Callable[[], tuple[Strategy, Sync]]  # for another worker of this process, with what they are given
    layout: Layout
    model: nn.Module  # the whole, on the meta device
    modules: list[nn.Module]  # what the strategy cuts it into; in training they compute in `precision`
    make_model: Callable[[], nn.Module]  # adapted
    adapt: Adapt
    following: "Parts | None"  # with the model that `adapt.following` makes in mid-run; see phases.py
    adversarial_training: AdversarialTraining
    teacher: Teacher | None
    average: Average
    make_optimizer: MakeOptimizer
    precision: Precision  # of passes; float32 where the strategy rounds weights itself
    allowed: tuple[str, ...]  # the user's own modules
    callbacks: Callbacks  # by name, for the chief

    def loss(self, plain: Loss) -> Loss:
        """What is trained, where `plain` is the task's."""
        return plain if self.teacher is None else self.teacher.method.loss(plain)
