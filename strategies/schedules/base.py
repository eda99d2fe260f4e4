"""What a learning-rate schedule is: the factor of the optimizer's rate in each step, and the rules that scale it.

Linear scaling and warm-up: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2. Square-root
scaling: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997, section 5.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from ..errors import LayoutError

Unit = Literal["steps", "epochs"]
Scale = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True)
class Horizon:
    """What a schedule knows of the run."""

    steps: int  # of the whole run
    steps_per_epoch: int
    batch: int  # samples of one update: of all replicas where they join one step, else of one


class Schedule(ABC):
    @abstractmethod
    def factor(self, step: int, horizon: Horizon) -> float:
        """>= 0: what the optimizer's rate is multiplied by in this step, 0 <= step < horizon.steps."""

    @abstractmethod
    def check(self, horizon: Horizon) -> None:
        """Raises `LayoutError` where the run is too short for it."""


class Unscheduled(Schedule):
    """The optimizer's rate, untouched."""

    def factor(self, step: int, horizon: Horizon) -> float:
        return 1.0

    def check(self, horizon: Horizon) -> None:
        pass


def scaling(scale: Scale, base_batch: int | None, batch: int) -> float:
    """k or sqrt(k), k = batch / base_batch."""
    if scale == "none":
        return 1.0
    assert base_batch is not None
    k = batch / base_batch
    return k if scale == "linear" else k**0.5


def check_scaling(scale: Scale, base_batch: int | None) -> None:
    """Raises `LayoutError`."""
    if scale != "none" and base_batch is None:
        raise LayoutError(
            f"schedule.scale={scale}: multiplies the rate by the batch over that which the rate was found for; "
            "choose schedule.base_batch=256 (that batch), or schedule.scale=none"
        )


class WarmedUp(Schedule):
    """A linear warm-up of W steps from the factor a, then the schedule's own `shape`:

    factor(t) = scale (a + (1 - a) t / W)   for t < W,      scale shape(t - W, T - W)   from there on,

    T being the steps of the run. The first step has t = 0, as in torch.optim.lr_scheduler.
    """

    def __init__(
        self,
        warmup: Annotated[float, Ge(0)] = 0,
        warmup_from: Annotated[float, Ge(0), Le(1)] = 0.0,
        unit: Unit = "steps",
        scale: Scale = "none",
        base_batch: Annotated[int, Gt(0)] | None = None,
    ) -> None:
        """`warmup`: W, in `unit`. `warmup_from`: a. `unit`: of all lengths of time. `base_batch`: in samples, the batch
        that the optimizer's rate was found for. Raises `LayoutError`.
        """
        check_scaling(scale, base_batch)
        self.warmup, self.warmup_from, self.unit = warmup, warmup_from, unit
        self.scale: Scale = scale
        self.base_batch = base_batch

    def in_steps(self, length: float, horizon: Horizon) -> int:
        """A length in the schedule's unit, rounded to whole steps."""
        return round(length * (horizon.steps_per_epoch if self.unit == "epochs" else 1))

    def check(self, horizon: Horizon) -> None:
        if (steps := self.in_steps(self.warmup, horizon)) > horizon.steps:
            raise LayoutError(
                f"schedule.warmup={self.warmup:g}: a warm-up of {steps:,} steps is longer than the run, which has "
                f"{horizon.steps:,}; choose a shorter one, or more steps"
            )

    def factor(self, step: int, horizon: Horizon) -> float:
        warmup = self.in_steps(self.warmup, horizon)
        if step < warmup:
            own = self.warmup_from + (1 - self.warmup_from) * step / warmup
        else:
            own = self.shape(step - warmup, horizon.steps - warmup, horizon)
        return own * scaling(self.scale, self.base_batch, horizon.batch)

    @abstractmethod
    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        """The factor in step t of the `total` after the warm-up."""
