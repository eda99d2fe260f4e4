"""The facts of a run for its strategy and sync mode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...comm import Comm
from .clip import Counted
from .cost import World
from .passes import Passes
from .precision import Precision
from .privacy import Privacy
from .schedule import CONSTANT, Rate

PLAIN = Precision()
BY_AUTOGRAD = Passes()


@dataclass(frozen=True)
class Setting:
    """The facts of a run for its strategy and sync mode, given by `configure` as soon as they are known.

    Before a model is split: `precision` and `privacy`. Before a cost is asked for: `hosts`, `worlds` and
    `backward_passes`. Before `prepare`: what else is there but for `before_step` and `stops_before`, which come before
    the first step. What nobody told has its default.
    """

    precision: Precision = PLAIN  # in which passes compute
    privacy: Privacy | None = None  # of each sample, where gradients are clipped sample by sample
    hosts: tuple[int, ...] | None = None  # of a replica's workers, numbered in any way; None where it is not known
    worlds: Sequence[World] = ()  # those who hold each part of the model
    across: Comm | None = None  # those who hold this worker's part, where the strategy talks to other replicas
    backward_passes: int = 1  # of a step
    steps_per_epoch: int = 1  # of the partition
    shares_of_samples: Sequence[float] | None = None  # n_k / n, by replica; None: as many each
    passes: Passes = BY_AUTOGRAD  # computes a pass of a replica that is one worker
    rate: Rate = CONSTANT  # how the optimizer's goes over the run
    scaled: bool = False  # losses are scaled (precision=fp16), and a step may be skipped
    counted: Counted | None = None  # what of a replica's gradient each of its workers counts, where `clip` measures it
    centres: Tensor | None = None  # [replicas, ...], of the samples of each, where replicas are experts
    before_step: Callable[[], None] | None = None  # called with the gradients of a step, before they are clipped
    stops_before: Callable[[int], bool] | None = None  # asked by a server of each round but the first
