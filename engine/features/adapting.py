"""`adapt`: another model is made of the model before it trains, or while it does (strategies/adapt/)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ...strategies.adapt import Adapt, AdaptContext, Apart, AsItIs, While
from ...strategies.adapt.base import factors_of
from ...strategies.core.clip import Counted
from ...strategies.core.cost import Cost, Memory, World
from ...strategies.core.state import state_of
from ...strategies.core.terms import Need
from ..config.experiment import Experiment
from ..config.targets import build
from . import injected, kept
from .feature import Chosen, Context, Feature, Hooks, Known, Parts, State
from .models import ModelFeature


@dataclass(frozen=True)
class Adapted(ModelFeature):
    """The choice of `adapt`."""

    adapt: Adapt
    name: str
    key = "adapt"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        choice = chosen.experiment.choice("adapt")
        adapt = build("adapt", choice, Adapt, chosen.allowed, {})
        return None if isinstance(adapt, AsItIs) else cls(adapt, choice.name)

    @property
    def looks_at_weights(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.adapt.prunes

    @property
    def trainings(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.adapt.trainings

    @property
    def following(self) -> "Adapted | None":  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self.adapt.following is None else replace(self, adapt=self.adapt.following)

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        adapt = build("adapt", experiment.choice("adapt"), Adapt, allowed, {})
        return "" if isinstance(adapt, AsItIs) or factors_of(adapt) else "changes what is trained or computed"

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        choice = experiment.choice("adapt")
        adapt = build("adapt", choice, Adapt, allowed, {})
        if adapt.trainings > 1:
            return (
                f"adapt={choice.name}: trains several times, and changes weights in between, where verify compares one "
                "training. Choose adapt=none."
            )
        if adapt.following is not None:
            return (
                f"adapt={choice.name}: makes the model another one in mid-run, and what is made of weights that differ "
                "by rounding may differ by more than rounding explains. Choose another adapt."
            )
        return ""

    @property
    def unpredicted(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.adapt.following is None:
            return ""
        return "makes the model another one in mid-run, and a prediction is of one step"

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        return self.adapt.needs

    def check(self, chosen: Chosen) -> None:
        if self.adapt.trainings > 1 and chosen.experiment.stop_at_target:
            raise ConfigError(
                f"stop_at_target=true: would end a run of adapt={self.name} in its first training, before there is "
                "anything to look at. Choose stop_at_target=false, or adapt=none."
            )
        if self.adapt.following is not None:
            assert self.trainings == self.adapt.following.trainings == 1, "several trainings, or one that follows"

    def check_parts(self, parts: Parts) -> None:
        names = parts.experiment.strategy.name, parts.experiment.sync.name
        with injected.naming(parts.experiment):
            self.adapt.check(parts.strategy, parts.sync, parts.modules, names)

    def check_steps(self, known: Known) -> None:
        if known.training is not None:
            self.adapt.check_steps(known.training)

    def model(self, model: nn.Module) -> nn.Module:
        return self.adapt.apply(model)

    def lasts(self, steps: int, steps_per_epoch: int) -> int:
        return self.adapt.lasts(steps, steps_per_epoch)

    def carried(self, model: nn.Module, state: State) -> Mapping[str, Tensor]:
        return self.adapt.carried(model, state)

    def added(self, names: frozenset[str]) -> frozenset[str]:
        return self.adapt.added(names)

    def plain_shapes(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        return self.adapt.plain_shapes(shapes)

    def begun(self, state: State, names: frozenset[str]) -> State:
        return self.adapt.begun(state, names)

    def exported(self, state: State) -> State:
        return self.adapt.merged(state)

    def nbytes(self, state: State) -> int:
        return self.adapt.nbytes(state)

    def apart(self, state: State) -> Apart | None:
        return self.adapt.apart(state)

    def hooks(self, context: Context) -> Hooks:
        return Adapting(self.adapt, context.parts)

    def memory(self, module: nn.Module, trained: Sequence[Tensor]) -> Memory:
        return {"buffers": self.adapt.holds(module)}

    def cost(self, parts: Parts, module: nn.Module, world: World, cost: Cost) -> Cost:
        pruned = kept.by_training(parts, self.adapt, module, world)
        return cost if pruned is None else replace(cost, worker=kept.mean(pruned), varies="")

    def notes(self, known: Known) -> list[str]:
        of_kept = kept.notes(known.parts, self.adapt, known.parts.strategy.setting.worlds)
        return [*self.adapt.notes(known.training), *of_kept]


def check_machine(experiment: Experiment, allowed: tuple[str, ...]) -> None:
    """Raises `ConfigError` where this machine lacks a package that a run needs."""
    build("adapt", experiment.choice("adapt"), Adapt, allowed, {}).check_machine()


@dataclass(frozen=True)
class SendsKept(Feature):
    """`compress=kept`, which leaves out what `adapt=pruned` has taken out."""

    key = "compress"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return cls() if injected.of_kept(chosen.of_groups) else None

    def check(self, chosen: Chosen) -> None:
        choice = chosen.experiment.choice("adapt")
        if build("adapt", choice, Adapt, chosen.allowed, {}).prunes:
            return
        raise ConfigError(
            f"compress={chosen.experiment.choice('compress').name}: leaves out what adapt=pruned has taken out, and "
            f"adapt={choice.name} {'with adapt.rounds=0 ' if choice.name == 'pruned' else ''}takes out nothing. Choose "
            "adapt=pruned with rounds, or compress=none."
        )


class Adapting(Hooks):
    """Does what `adapt` does while a model trains."""

    key = "adapt"

    def __init__(self, adapt: Adapt, parts: Parts) -> None:
        self._adapt, self._parts = adapt, parts
        self._while: While | None = None

    def begin(self, module: nn.Module, counted: Counted | None) -> None:
        parts = self._parts
        steps = parts.experiment.steps_in_all(parts.sync.setting.steps_per_epoch)
        assert steps is not None

        def redraw(number: int) -> State:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(((parts.experiment.seed + 1) * 1_000_003 + number) % 2**63)
                return state_of(parts.make_model())

        self._while = self._adapt.begin(AdaptContext(module, parts.sync, steps, redraw, counted))

    def acts_before(self, step: int) -> bool:
        return self._while is not None and self._while.acts_before(step)

    def before_step(self, step: int) -> None:
        if self._while is not None:
            self._while.before_step(step)

    def after_update(self, step: int, took: bool) -> None:
        if self._while is not None:
            self._while.after_update()

    def numbers(self) -> Mapping[str, float]:
        return {} if self._while is None else self._while.numbers()

    def evaluated(self, view: object) -> Mapping[str, float]:
        return self.numbers()

    def summary(self, done: int) -> Mapping[str, float]:
        return self.numbers()

    def tensors(self) -> Mapping[str, Sequence[Tensor]]:
        return {} if self._while is None else {"buffers": self._while.tensors()}

    def state_dict(self) -> dict[str, Any]:
        return {} if self._while is None else self._while.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._while is not None:
            self._while.load_state_dict(state)
