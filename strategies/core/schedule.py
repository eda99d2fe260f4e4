"""A learning-rate schedule: the factor of the optimizer's rate in each step, and the rules that scale it.

Linear scaling and warm-up: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2. Square-root
scaling: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997, section 5.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from torch.optim import Optimizer

from ...conf.errors import ConfigError

Unit = Literal["steps", "epochs"]
Scale = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True)
class Horizon:
    """The facts of a run that a schedule knows."""

    steps: int  # of the whole run
    steps_per_epoch: int
    batch: int  # samples of one update: of all replicas where they join one step, else of one


class Schedule(ABC):
    """Frozen: whoever counts steps keeps the count, so that a resumed run goes on exactly."""

    @abstractmethod
    def factor(self, step: int, horizon: Horizon) -> float:
        """>= 0: what the optimizer's rate is multiplied by in this step, 0 <= step < horizon.steps."""

    def check(self, horizon: Horizon) -> None:
        """Raises `ConfigError` where the run is too short for it."""

    def corners(self, horizon: Horizon) -> list[int]:
        """Steps at which a reader wants to know the rate, beside the first and the last."""
        return []


@dataclass(frozen=True)
class Unscheduled(Schedule):
    """The optimizer's rate, untouched."""

    def factor(self, step: int, horizon: Horizon) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Scaled(Schedule):
    """A shape, times how much larger the batch is than that which the optimizer's rate was found for:

    factor(t) = s own(t),     s = k (linear), sqrt(k) (sqrt), k = batch / base_batch.
    """

    scale: Scale = "none"
    base_batch: Annotated[int, Gt(0)] | None = None  # in samples

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if self.scale != "none" and self.base_batch is None:
            raise ConfigError(
                f"schedule.scale={self.scale}: multiplies the rate by the batch over that which the rate was found "
                "for. Choose schedule.base_batch=256 (that batch), or schedule.scale=none."
            )
        if self.scale == "none" and self.base_batch is not None:
            raise ConfigError(
                f"schedule.base_batch={self.base_batch}: nothing is scaled by it. Choose schedule.scale=linear or "
                "sqrt, or schedule.base_batch=null."
            )

    def factor(self, step: int, horizon: Horizon) -> float:
        return self.scaling(horizon) * self.own(step, horizon)

    def scaling(self, horizon: Horizon) -> float:
        """s"""
        if self.base_batch is None:
            return 1.0
        k = horizon.batch / self.base_batch
        return k if self.scale == "linear" else k**0.5

    @abstractmethod
    def own(self, step: int, horizon: Horizon) -> float:
        """The factor in this step at the base batch."""


@dataclass(frozen=True, kw_only=True)
class WarmedUp(Scaled):
    """A linear warm-up of W steps from the factor a, then the schedule's own `shape`:

    own(t) = a + (1 - a) t / W   for t < W,      shape(t - W, T - W)   from there on,

    T being the steps of the run. The first step has t = 0, as in torch.optim.lr_scheduler.
    """

    warmup: Annotated[float, Ge(0)] = 0  # W, in `unit`
    warmup_from: Annotated[float, Ge(0), Le(1)] = 0.0  # a
    unit: Unit = "steps"  # of all lengths of time

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole("warmup", self.warmup)
        if self.warmup == 0 and self.warmup_from != 0:
            raise ConfigError(
                f"schedule.warmup_from={self.warmup_from:g}: there is no warm-up that begins with it. Choose "
                "schedule.warmup=100 (steps) too, or schedule.warmup_from=0."
            )

    def check_whole(self, knob: str, length: float) -> None:
        """Raises `ConfigError`."""
        if self.unit == "steps" and length != round(length):
            raise ConfigError(
                f"schedule.{knob}={length:g}: must be a whole number of steps; with schedule.unit=epochs it may be a "
                "part of an epoch"
            )

    def in_steps(self, length: float, horizon: Horizon) -> int:
        """A length in the schedule's unit, rounded to whole steps."""
        return round(length * (horizon.steps_per_epoch if self.unit == "epochs" else 1))

    def check(self, horizon: Horizon) -> None:
        if (steps := self.in_steps(self.warmup, horizon)) > horizon.steps:
            longer = f" {self.unit}, {steps:,} steps," if self.unit == "epochs" else " steps"
            raise ConfigError(
                f"schedule.warmup={self.warmup:g}: a warm-up of {self.warmup:g}{longer} is longer than the run, which "
                f"has {horizon.steps:,}. Choose a shorter one, or more steps."
            )

    def corners(self, horizon: Horizon) -> list[int]:
        warmup = self.in_steps(self.warmup, horizon)
        return [warmup, (warmup + horizon.steps) // 2]

    def own(self, step: int, horizon: Horizon) -> float:
        warmup = self.in_steps(self.warmup, horizon)
        if step < warmup:
            return self.warmup_from + (1 - self.warmup_from) * step / warmup
        return self.shape(step - warmup, horizon.steps - warmup, horizon)

    @abstractmethod
    def shape(self, t: int, total: int, horizon: Horizon) -> float:
        """The factor in step t of the `total` after the warm-up."""


@dataclass(frozen=True)
class Rate:
    """A schedule over a run."""

    schedule: Schedule
    horizon: Horizon

    def factor(self, step: int) -> float:
        """Returns the factor of `step`; beyond the run, that of its last step (a server may count more steps:
        exchange/stepping.py). Raises `ConfigError`.
        """
        step = min(step, self.horizon.steps - 1)
        made: Any = self.schedule.factor(step, self.horizon)
        with suppress(TypeError, ValueError):
            if 0 <= (factor := float(made)) < inf:
                return factor
        raise ConfigError(
            f"{type(self.schedule).__name__}.factor of step {step} is {made!r}; must be a finite number of 0 or more",
            about=("schedule",),
        )

    def points(self) -> dict[int, float]:
        """The factor at the steps that tell how it goes, in order."""
        steps = {0, *self.schedule.corners(self.horizon), self.horizon.steps - 1}
        return {step: self.factor(step) for step in sorted(steps) if step < self.horizon.steps}


CONSTANT = Rate(Unscheduled(), Horizon(1, 1, 1))


def scaled(optimizers: list[Optimizer], factor: float) -> AbstractContextManager[None]:
    """Returns a context in which the optimizers' rates are multiplied by `factor`: what is saved has the optimizer's
    own.
    """
    return nullcontext() if factor == 1.0 else _scaled(optimizers, factor)


@contextmanager
def _scaled(optimizers: list[Optimizer], factor: float) -> Iterator[None]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
