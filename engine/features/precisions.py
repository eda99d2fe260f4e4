"""Checks which strategies and sync modes compute in which precision, and states the bytes of scaled losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from ...exchange.collectives import Fabric
from ...strategies.core.clip import Counted
from ...strategies.core.cost import World
from ...strategies.core.loss import Loss
from ...strategies.core.loss_scale import FLAG
from ...strategies.core.terms import EVERY_PRECISION, SKIPS, Need, required
from ...strategies.precision import LossScale, Precision
from .feature import Chosen, Context, Feature, Hooks, Parts, Sums


@dataclass(frozen=True)
class InPrecision(Feature):
    """Passes compute in the precision that is chosen, with a scaled loss where it needs one."""

    key = "precision"

    @classmethod
    def of(cls, chosen: Chosen) -> Self:
        return cls()

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        precision = chosen.strategy.setting.precision
        scaled = precision.scale() is not None and not chosen.strategy.traits.rounds_weights
        return required(
            (Need(EVERY_PRECISION, f"computes in {precision.name}"), precision.dtype is not None),
            (Need(SKIPS, "leaves out steps whose gradients overflow"), scaled),
        )

    def sums(self, parts: Parts) -> Sums:
        """Returns what workers send to agree on leaving out a step."""
        within = not (parts.sync.traits.steps_together and parts.layout.replicas > 1)
        among = parts.layout.parts if within else parts.layout.workers
        if among == 1 or parts.precision.scale() is None:
            return Sums()
        flag = Fabric().traffic(FLAG, World(among))
        return Sums(within=flag) if within else Sums(among_all=flag)

    def hooks(self, context: Context) -> Hooks:
        scale = context.parts.precision.scale()
        return Casting(context.parts.precision) if scale is None else Scaling(scale, context)


class Casting(Hooks):
    """Computes the loss in a precision."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def loss(self, plain: Loss) -> Loss:
        return self._precision.loss(plain)


class Scaling(Hooks):
    """Scales the loss, and leaves out steps whose gradients overflow (strategies/core/loss_scale.py)."""

    key = "scale"

    def __init__(self, scale: LossScale, context: Context) -> None:
        self._scale, self._context = scale, context

    def loss(self, plain: Loss) -> Loss:
        return self._context.parts.precision.loss(plain, self._scale)

    def begin(self, module: nn.Module, counted: Counted | None) -> None:
        sync = self._context.parts.sync
        among = self._context.workers if sync.traits.steps_together else self._context.of_replica
        self._scale.among = among if among.size > 1 else None
        self._scale.watch(sync.parameters.values(), sync.traits.hooked)

    def follow(self, before: Hooks) -> None:
        self.load_state_dict(before.state_dict())

    def takes_step(self) -> bool:
        return not self._scale.overflowed(self._context.comm.rank)

    def numbers(self) -> Mapping[str, float]:
        return {"loss_scale": self._scale.value, "skipped_steps": self._scale.skipped}

    def summary(self, done: int) -> Mapping[str, float]:
        return {"skipped_steps": self._scale.skipped}

    def told(self) -> Mapping[str, float]:
        return {"taken": self._scale.taken}

    def failure(self, done: int, told: Sequence[Mapping[str, float]]) -> str | None:
        if any(each["taken"] for each in told):
            return None
        name = self._context.parts.experiment.choice("precision").name
        return (
            f"precision={name}: no step was taken, and all weights are as they were: in each of {done:,} steps a "
            f"gradient overflowed, and the loss scale is down to {self._scale.value:,.0f} only. Choose a smaller "
            "precision.scale, more steps, or precision=bf16."
        )

    def state_dict(self) -> dict[str, Any]:
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scale.load_state_dict(state)
