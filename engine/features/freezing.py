"""Some layers of the model keep their weights, for the whole run or for its first epochs.

A layer is a module that holds parameters or running statistics itself. Layers are frozen by their names, or by depth:
the first n, in the order in which the model names them. Frozen weights have no gradient and no state of the optimizer,
and nothing is sent for them:

    w_(t+1) = w_t for frozen w,   w_(t+1) = w_t - eta g_t for the others.

A frozen layer with running statistics (batch norm) computes with these and leaves them as they are, as in evaluation;
layers of Keras with trainable=False do so, too.

With `until`, all layers are trained from that epoch on (Howard and Ruder 2018, "Universal Language Model Fine-tuning
for Text Classification", arXiv 1801.06146, section 3.2, who unfreeze one layer after another). The run then goes on
as with another model: the optimizer, and what the sync mode and its compressor keep, begin anew.

Cost: the gradients, the optimizer's state and the bytes on the wire are those of the layers that are trained. Passes
back through frozen layers are left out where no trained layer lies before them.

Use it to fine-tune the last layers of a model that `weights` brings, or to warm a new last layer up.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, MinLen
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ...batches import always_infer
from ...conf.counted import counted
from ...conf.errors import ConfigError
from ...strategies.adapt.patterns import matches, shown
from ..config.experiment import Experiment
from ..config.targets import build
from .feature import Chosen, Known, Parts
from .models import ModelFeature


class Freeze(ModelFeature):
    """The base of the choices of `freeze`. This one freezes nothing."""

    key = "freeze"

    @classmethod
    def of(cls, chosen: Chosen) -> "Freeze | None":  # pyright: ignore[reportIncompatibleMethodOverride]
        made = build("freeze", chosen.experiment.choice("freeze"), Freeze, chosen.allowed, {})
        return None if type(made) is Freeze else made

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        return "" if experiment.choice("freeze").name == "none" else "trains some layers alone"

    @classmethod
    def unverified(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        until = experiment.choice("freeze").knobs.get("until")
        if until is None:
            return ""
        return (
            f"freeze.until={until}: serial training knows of no optimizer that begins anew. Choose freeze.until=null."
        )


@dataclass(frozen=True)
class TrainedShare:
    """States how much of the model is trained at first."""

    trained: int  # entries of parameters
    parameters: int  # of all layers
    layers: int  # that are frozen
    of: int  # all layers

    def in_words(self) -> str:
        return f"{self.layers:,} of {self.of:,} layers; {self.trained:,} of {self.parameters:,} parameters are trained"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Layers(Freeze):
    """Freezes layers by name or depth."""

    def __init__(
        self,
        first: Annotated[int, Ge(0)] = 0,
        modules: Sequence[Annotated[str, MinLen(1)]] = (),
        until: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        """Freezes the `first` layers, and those whose name matches one of `modules`.

        Args:
            modules: whole names, or what names end in after a dot; * stands for anything.
            until: epochs after which all layers are trained; None: never.

        Raises `ConfigError`.
        """
        if not first and not modules:
            raise ConfigError(
                "freeze.first=0, freeze.modules=[]: freeze no layer. Choose freeze.first=N for the first N layers, "
                "freeze.modules=[PATTERN] for some by name, or freeze=none."
            )
        self._first, self._modules, self.until = first, tuple(modules), until
        self.following = None if until is None else Freeze()

    @property
    def unpredicted(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "" if self.until is None else "trains other layers in mid-run, and a prediction is of one step"

    @property
    def _told(self) -> str:
        return f"freeze.first={self._first}, freeze.modules={list(self._modules)}"

    def switch(self, experiment: Experiment) -> str:
        return f"freeze.until={self.until:g}"

    def check(self, chosen: Chosen) -> None:
        if (adapt := chosen.experiment.choice("adapt").name) != "none":
            raise ConfigError(
                f"freeze={chosen.experiment.choice('freeze').name}: adapt={adapt} says itself what is trained. Choose "
                "freeze=none or adapt=none."
            )

    def check_parts(self, parts: Parts) -> None:
        empty = [i for i, part in enumerate(parts.modules) if not any(each.requires_grad for each in part.parameters())]
        if empty:
            raise ConfigError(
                f"freeze={parts.experiment.choice('freeze').name}: freezes all layers of part {empty[0]} of "
                f"strategy={parts.experiment.strategy.name}, whose worker would have nothing to train. Freeze fewer "
                "layers, or choose strategy=data_parallel."
            )

    def model(self, model: nn.Module) -> nn.Module:
        for layer in self._chosen(model):
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(False)
            if has_statistics(layer):
                always_infer(layer)
        return model

    def _chosen(self, model: nn.Module) -> list[nn.Module]:
        """Returns the layers to freeze. Raises `ConfigError`."""
        every = layers_of(model)
        for pattern in self._modules:
            if not any(matches(name, pattern) for name in every):
                raise ConfigError(f"{self._told}: no layer is called {pattern}. Choose of {', '.join(shown(every))}.")
        frozen = {name: layer for name, layer in every.items() if any(matches(name, each) for each in self._modules)}
        frozen |= dict([*every.items()][: self._first])
        for name, layer in frozen.items():
            if "parametrizations" in name or is_parametrized(layer):
                raise ConfigError(
                    f"{self._told}: layer {name} makes its weight of other ones (torch.nn.utils.parametrize), and only "
                    "plain weights are frozen. Choose other layers."
                )
        own = {parameter for layer in frozen.values() for parameter in layer.parameters(recurse=False)}
        others = {name: layer for name, layer in every.items() if name not in frozen}
        for name, layer in others.items():
            if any(parameter in own for parameter in layer.parameters(recurse=False)):
                raise ConfigError(
                    f"{self._told}: layer {name} shares a weight with a frozen one. Choose both, or neither, of "
                    f"{', '.join(shown(every))}."
                )
        if not any(
            parameter.requires_grad for layer in others.values() for parameter in layer.parameters(recurse=False)
        ):
            raise ConfigError(
                f"{self._told}: leaves nothing to train. Choose fewer than the {len(every)} layers "
                f"{', '.join(shown(every))}."
            )
        return [*frozen.values()]

    def lasts(self, steps: int, steps_per_epoch: int) -> int:
        assert self.until is not None
        first = round(min(self.until * steps_per_epoch, 2.0**62))
        if not 0 < first < steps:
            raise ConfigError(
                f"freeze.until={self.until:g}: is step {first:,} of a run of {counted(steps, 'step')}, "
                f"{steps / steps_per_epoch:.3g} epochs. Choose an epoch within the run, or null."
            )
        return first

    def stated(self, known: Known) -> TrainedShare:
        model = known.parts.model
        parameters = list(model.parameters())
        every = layers_of(model).values()
        return TrainedShare(
            sum(each.numel() for each in parameters if each.requires_grad),
            sum(each.numel() for each in parameters),
            sum(not any(each.requires_grad for each in layer.parameters(recurse=False)) for layer in every),
            len(every),
        )

    def notes(self, known: Known) -> list[str]:
        if self.until is None:
            return []
        return [
            f"freeze.until={self.until:g}: then all layers are trained, and the optimizer, and what the sync mode and "
            "its compressor keep, begin anew"
        ]


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules that hold parameters or running statistics themselves, by name, in the model's order."""
    return {
        name: each
        for name, each in model.named_modules()
        if next(each.parameters(recurse=False), None) is not None or has_statistics(each)
    }


def has_statistics(layer: nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None
