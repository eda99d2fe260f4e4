"""Checks that a model takes a batch of the data and has the outputs of the task: on the meta device, before any run."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...batches import Fields, Samples, call
from ...conf.errors import ConfigError
from ...strategies import Strategy
from ...strategies.core.loss import Loss
from ...tasks.base import DataSpec
from ...tasks.losses import own
from ...tasks.losses.base import Task
from ..base.blame import layer, place, said
from ..base.failures import shortest, speaks_for_itself
from .experiment import Experiment


def batch_of(spec: DataSpec, size: int) -> tuple[Samples, Samples]:
    """Inputs and targets, with weights where there are some, on the meta device."""
    fields = {
        key: torch.empty(size, *field.shape, dtype=field.dtype, device="meta") for key, field in spec.fields.items()
    }
    targets = torch.empty(size, *spec.target_shape, dtype=spec.target_dtype, device="meta")
    weights = torch.empty(targets.shape, device="meta") if spec.weights else None
    return spec.joined(fields), weighted(targets, weights)


def weighted(targets: Tensor, weights: Tensor | None) -> Samples:
    """Returns the targets in the form of `Task.function`."""
    return targets if weights is None else Fields({"targets": targets, "weights": weights})


def check_takes(
    experiment: Experiment, forward: Callable[..., object], spec: DataSpec, labels: str, is_bound: bool
) -> None:
    """Checks by the signature of its forward that a model can be called with the inputs. Raises `ConfigError`.

    `labels`: the argument by which the task gives the model its targets; empty where it does not.
    """
    is_lone = spec.inputs is None
    positional = [key for key in spec.fields if is_lone or not isinstance(key, str)]
    named = {} if is_lone else {key: field for key, field in spec.fields.items() if isinstance(key, str)}
    given = f"forward({', '.join([*(f'input {i}' for i in range(len(positional))), *(f'{key}=...' for key in named)])})"
    signature = inspect.signature(forward)
    try:
        signature.bind(*([] if is_bound else [None]), *positional, **named)
    except TypeError as error:
        takes = ", ".join(str(each) for each in list(signature.parameters.values())[0 if is_bound else 1 :])
        if labels and labels not in signature.parameters:
            raise ConfigError(
                f"task={experiment.task.name}: gives the targets to model={experiment.model.name} as `{labels}`, and "
                f"its forward takes ({takes}). Choose task.argument=NAME, its name for them, or task=cross_entropy or "
                "squared, which compute a loss of the model's outputs."
            ) from None
        how = "Name the inputs as forward does, or choose some of them by data.inputs"
        raise ConfigError(
            f"model={experiment.model.name}: its forward takes ({takes}), and data={experiment.data.name} has "
            f"{'one input' if is_lone else 'several inputs'}, with which it is called as {given}: {error}. "
            f"{'Choose a model of one input, or data of several' if is_lone else how}"
        ) from None


def check_parts_take(experiment: Experiment, strategy: Strategy, spec: DataSpec) -> None:
    """Checks that the strategy takes such samples. Raises `ConfigError`."""
    name, data = experiment.strategy.name, experiment.data.name
    if spec.inputs is not None and strategy.traits.one_input:
        raise ConfigError(
            f"strategy={name}: {strategy.traits.one_input}, and a sample of data={data} has several inputs "
            f"({', '.join(map(str, spec.fields))}); strategy=data_parallel takes them"
        )
    if spec.weights and strategy.traits.whole_targets:
        raise ConfigError(
            f"strategy={name}: {strategy.traits.whole_targets}, and the samples of data={data} have weights; "
            "strategy=pipeline takes them"
        )


class NotTakenError(ConfigError):
    """The model raised something in its forward pass, or the task in its loss."""


@contextmanager
def model_takes(experiment: Experiment, inputs: Samples, allowed: tuple[str, ...]) -> Iterator[None]:
    """Turns an exception of the model's forward pass into a `NotTakenError`; others pass as they are."""
    with _taking(
        lambda: (
            f"model={experiment.model.name} does not take a batch of data={experiment.data.name}, {_said_of(inputs)}"
            f"{', or its own loss raises' if experiment.task.target.startswith(own.__name__) else ''}"
        ),
        allowed,
    ):
        yield


@contextmanager
def _taking(what: Callable[[], str], allowed: tuple[str, ...]) -> Iterator[None]:
    """Turns an exception of user code, or about shapes, into a `NotTakenError` that begins with `what`."""
    try:
        yield
    except Exception as error:
        where, which = place(error, allowed), layer(error)
        is_shapes = isinstance(error, RuntimeError | IndexError)  # torch's word on them
        if speaks_for_itself(error) or not (where or which or is_shapes):
            raise
        at = "".join(f"{words}: " for words in (where, which) if words)
        raise NotTakenError(f"{what()}: {at}{said(error)}") from error


def materialise(model: nn.Module, experiment: Experiment, spec: DataSpec, allowed: tuple[str, ...]) -> None:
    """Give lazy layers, such as nn.LazyLinear, their shapes, by a pass of zeros where the model is being built."""
    tensors = (*model.parameters(), *model.buffers())
    if not any(isinstance(each, UninitializedParameter | UninitializedBuffer) for each in tensors):
        return
    fields = {key: torch.zeros(2, *field.shape, dtype=field.dtype) for key, field in spec.fields.items()}
    inputs, training = spec.joined(fields), model.training
    with model_takes(experiment, inputs, allowed), torch.no_grad():
        call(model.eval(), inputs)
    model.train(training)


def _said_of(inputs: Samples) -> str:
    return repr(inputs) if isinstance(inputs, Fields) else f"{inputs.dtype} {list(inputs.shape)}"


def checked_loss(
    experiment: Experiment, model: nn.Module, spec: DataSpec, task: Task, allowed: tuple[str, ...]
) -> Loss:
    """The task's, of outputs that it takes. `model`: whose they are."""

    plain = task.function(spec)
    _check_untrained(experiment, task)

    @functools.wraps(plain)  # with what it says of itself
    def loss(outputs: Tensor, wanted: Samples) -> Tensor:
        _check_outputs(experiment, model, outputs, _of_slab(spec, wanted), task)
        with _taking(lambda: f"task={experiment.task.name}: its loss raises, of outputs {_said_of(outputs)}", allowed):
            made = plain(outputs, wanted)
        _check_loss(experiment, made, outputs)
        return made

    return loss


def _of_slab(spec: DataSpec, targets: Samples) -> DataSpec:
    """Returns `spec` with the shape of these targets, which may be rows of an image (strategy=domain)."""
    shape = tuple(targets.shape[1:]) if isinstance(targets, Tensor) else spec.target_shape
    same_dimensions = len(shape) == len(spec.target_shape)
    return replace(spec, target_shape=shape) if same_dimensions and shape != spec.target_shape else spec


def _check_untrained(experiment: Experiment, task: Task) -> None:
    """Raises `ConfigError` for parameters that a task of the user's would have trained: nothing trains them."""
    for name, value in vars(task).items():
        held = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(each, nn.Parameter) and each.requires_grad for each in held):
            raise ConfigError(
                f"task={experiment.task.name}: {name} has parameters, and only the model's are trained. Put them into "
                "the model, or call requires_grad_(False) on them."
            )


def _check_loss(experiment: Experiment, made: object, outputs: Tensor) -> None:
    found = f"a tensor {list(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    if not isinstance(made, Tensor) or made.numel() != 1:
        raise ConfigError(
            f"task={experiment.task.name}: its loss is {found}; must be a tensor of one number, the mean over samples"
        )
    if outputs.requires_grad and not made.requires_grad:
        raise ConfigError(
            f"task={experiment.task.name}: its loss has no gradient. Compute it from the outputs by operations that "
            "have one, and without detach()."
        )


def _check_outputs(experiment: Experiment, model: nn.Module, outputs: object, spec: DataSpec, task: Task) -> None:
    wanted = f"[samples, {', '.join(map(str, task.outputs(spec)))}]"
    if not isinstance(outputs, Tensor):
        code = type(model).forward.__code__
        where = (
            f"{type(model).__module__}.{code.co_qualname} ({shortest(code.co_filename)}, line {code.co_firstlineno})"
        )
        raise ConfigError(
            f"model={experiment.model.name}: {where} returns a {type(outputs).__name__}; must return a tensor "
            f"{wanted}, or a dict or an object with `logits`"
        )
    if not task.accepts(outputs, spec):
        kind = f"{spec.classes} classes" if spec.targets == "labels" else f"numbers ({spec.target_dtype})"
        raise ConfigError(
            f"model={experiment.model.name} puts out {list(outputs.shape)}; data={experiment.data.name} has targets "
            f"{list(spec.target_shape)} of {kind}, so it must be {wanted}"
        )
