"""Whether a model takes a batch of the data and puts out what the task wants: on the meta device, before any run."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..strategies.base import Loss
from ..tasks.base import DataSpec
from ..tasks.losses.base import Task
from .blame import layer, place, said
from .errors import ConfigError
from .experiment import Experiment
from .failures import shortest, speaks_for_itself


def batch_of(spec: DataSpec, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets on the meta device."""
    inputs = torch.empty(size, *spec.input_shape, dtype=spec.input_dtype, device="meta")
    return inputs, torch.empty(size, *spec.target_shape, dtype=spec.target_dtype, device="meta")


@contextmanager
def model_takes(experiment: Experiment, inputs: Tensor, allowed: tuple[str, ...]) -> Iterator[None]:
    """What the model's forward raises becomes a `ConfigError` that says so; all else is raised as it is."""
    try:
        yield
    except Exception as error:
        where, which = place(error, allowed), layer(error)
        is_shapes = isinstance(error, RuntimeError | IndexError)  # torch's word on them
        if speaks_for_itself(error) or not (where or which or is_shapes):
            raise
        at = "".join(f"{words}: " for words in (where, which) if words)
        raise ConfigError(
            f"model={experiment.model.name} does not take a batch of data={experiment.data.name}, "
            f"{inputs.dtype} {list(inputs.shape)}: {at}{said(error)}"
        ) from error


def checked_loss(experiment: Experiment, model: nn.Module, spec: DataSpec, task: Task) -> Loss:
    """The task's, of outputs that it takes. `model`: whose they are."""

    @functools.wraps(task.loss)  # with what it says of itself
    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        _check_outputs(experiment, model, outputs, spec, task)
        return task.loss(outputs, wanted)

    return loss


def _check_outputs(experiment: Experiment, model: nn.Module, outputs: object, spec: DataSpec, task: Task) -> None:
    wanted = f"[samples, {', '.join(map(str, task.outputs(spec)))}]"
    if not isinstance(outputs, Tensor):
        code = type(model).forward.__code__
        where = (
            f"{type(model).__module__}.{code.co_qualname} ({shortest(code.co_filename)}, line {code.co_firstlineno})"
        )
        raise ConfigError(
            f"model={experiment.model.name}: {where} returns a {type(outputs).__name__}; must return a tensor "
            f"{wanted}, such as the object's .logits"
        )
    if not task.accepts(outputs, spec):
        kind = f"{spec.classes} classes" if spec.targets == "labels" else f"numbers ({spec.target_dtype})"
        raise ConfigError(
            f"model={experiment.model.name} puts out {list(outputs.shape)}; data={experiment.data.name} has targets "
            f"{list(spec.target_shape)} of {kind}, so it must be {wanted}"
        )
