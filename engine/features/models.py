"""Features that change the model: `ModelFeature`, and what all of a run's make of it together."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ...strategies.adapt import Apart
from ...strategies.core.cost import payload
from ..config.experiment import Experiment
from .feature import Feature, Parts, State


class ModelFeature(Feature):
    """A feature that makes another model of the model, before training or in mid-run.

    `looks_at_weights`: what it makes depends on them. `trainings`: how often the run trains, each for as many steps as
    its `steps` or `epochs` say. `following`: the feature that takes this one's place after `lasts` steps (phases.py);
    None: this one stays.
    """

    looks_at_weights: bool = False
    trainings: int = 1
    following: "ModelFeature | None" = None

    def model(self, model: nn.Module) -> nn.Module:
        """Returns the model to train. It works on the meta device too. Raises `ConfigError`."""
        return model

    def switch(self, experiment: Experiment) -> str:
        """Returns the choice that makes the model another one in mid-run."""
        return f"{self.key}={experiment.choice(self.key).name}"

    def lasts(self, steps: int, steps_per_epoch: int) -> int:
        """Returns how many of the run's steps are made before `following`. Raises `ConfigError`."""
        raise NotImplementedError

    def carried(self, model: nn.Module, state: State) -> Mapping[str, Tensor]:
        """Returns the state that `model`, of the next phase, begins with, where training ended with `state`."""
        return state

    def added(self, names: frozenset[str]) -> frozenset[str]:
        """Returns those of a model's tensors, by name, that the model did not have before."""
        return frozenset()

    def plain_shapes(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Returns the shapes of a model's tensors as the model had them before, beside those that were added."""
        return dict(shapes)

    def begun(self, state: State, names: frozenset[str]) -> State:
        """Returns the state, with tensors of these `names`, that begins with a state of the model as it was before."""
        return state

    def exported(self, state: State) -> State:
        """Returns the state of the model as it was before, which computes the same."""
        return state

    def nbytes(self, state: State) -> int | None:
        """Returns the bytes of the model where it is put to use; None: those of what is exported."""
        return None

    def apart(self, state: State) -> Apart | None:
        """Returns what of `state` is saved in a folder of its own; None: nothing is."""
        return None


def of_model(parts: Parts) -> list[ModelFeature]:
    return [each for each in parts.features if isinstance(each, ModelFeature)]


def made(features: Sequence[Feature], model: nn.Module) -> nn.Module:
    """Returns the model that is trained. Raises `ConfigError`."""
    for each in features:
        if isinstance(each, ModelFeature):
            model = each.model(model)
    return model


def trainings(features: Sequence[Feature]) -> int:
    return max((each.trainings for each in features if isinstance(each, ModelFeature)), default=1)


def added(parts: Parts, names: frozenset[str]) -> frozenset[str]:
    """Returns those of a model's tensors, by name, that features have added."""
    return frozenset[str]().union(*(each.added(names) for each in of_model(parts)))


def plain_shapes(parts: Parts, shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Returns the shapes of a model's tensors as they are without features, beside those that features have added."""
    for each in reversed(of_model(parts)):
        shapes = each.plain_shapes(shapes)
    return shapes


def begun(parts: Parts, state: State, names: frozenset[str]) -> State:
    """Returns the state of the model with features, with tensors of these `names`, that begins with `state`."""
    for each in of_model(parts):
        state = each.begun(state, names)
    return state


def carried(parts: Parts, model: nn.Module, state: State) -> Mapping[str, Tensor]:
    """Returns the state that `model`, of this phase, begins with, where the phase before ended with `state`."""
    for each in of_model(parts):
        state = dict(each.carried(model, state))
    return state


def exported(parts: Parts, state: State) -> State:
    """Returns the state of the model as it is without features."""
    for each in reversed(of_model(parts)):
        state = each.exported(state)
    return state


def nbytes(parts: Parts, state: State) -> int:
    """Returns the bytes of the model where it is put to use."""
    told = [found for each in of_model(parts) if (found := each.nbytes(state)) is not None]
    return told[0] if told else payload([*exported(parts, state).values()])


def apart(parts: Parts, state: State) -> list[Apart]:
    """Returns what of `state` is saved in folders of its own."""
    return [found for each in of_model(parts) if (found := each.apart(state)) is not None]
