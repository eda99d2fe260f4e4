"""Passes on the virtual cluster, recorded once and called again for all workers whose passes are the same.

Autograd and torch's modules take more time than the operations of a small model. The workers of a virtual cluster are
in one process and make the same pass of other weights and samples, so its operations are recorded once (program.py)
and then called directly. A worker's clock, its gradients and the hooks of its parameters come in the order of autograd.

A pass is replayed only where its results are those of autograd, bit for bit:

- Layers and loss are torch's or ours, whose code has no state of its own, and nobody has hooks in the model. What a
  layer has beside tensors is plain values, and is looked at before each pass.
- No operation draws random numbers, changes a tensor, as batch norm does, or has results whose shapes depend on values.
- For two batches, the loss and all gradients were those of autograd, and gradients came in the same order.

Everything else is computed by autograd, also while saved tensors are counted in a run's first steps.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import is_
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ...batches import Fields, Samples, call, tensors_of
from ...compat.recording import (
    NotRecordable,
    gradient_hooks,
    hook_first,
    is_plain_pass,
    record_gradients,
    takes_gradients,
)
from ...strategies.core.batch import Batch, BeforeBackward
from ...strategies.core.loss import Loss
from ...strategies.core.passes import Passes
from .program import Program

T = TypeVar("T")
MOST = 64  # models that a process keeps recordings of, and shapes of each
_OURS = f"{__name__.partition('.')[0]}.tasks."
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class Clock(Protocol):
    """The modelled time of a worker's passes."""

    @property
    def hooks(self) -> Collection[int]:
        """Returns the keys of its own hooks in the model."""
        ...

    def forward(self, inputs: Samples, root: Tensor) -> None:
        """Lets the time of a forward pass go by, of which a backward pass will begin at `root`."""
        ...


@dataclass
class PassRecording:
    """A pass of one model and shape of batches."""

    met: int = 0  # such passes
    agreed: int = 0  # batches for which results were those of autograd
    program: Program | None = None
    fails: bool = False
    order: tuple[int, ...] = ()  # of the trained parameters, as they got their gradients
    batch: tuple[Tensor, ...] = ()  # of the first pass that was compared


OfModel = dict[Any, PassRecording]  # by shapes of batches
Recordings = dict[Any, OfModel]  # of all workers of a process, by model


class ReplayedPasses(Passes):
    """The passes of one worker."""

    def __init__(self, clock: Clock, recordings: Recordings) -> None:
        self._clock, self._recordings = clock, recordings
        self._seen: _SeenModel | None = None
        self._unknown = False  # something in the model is not understood

    def forward_backward(self, module: nn.Module, loss: Loss, batch: Batch, before_backward: BeforeBackward) -> Tensor:
        tensors = (*tensors_of(batch.inputs), *tensors_of(batch.targets))
        found = self._found(module, loss, batch) if not self._unknown and is_plain_pass() else None
        if found is None or found.fails or self._seen is None:
            return super().forward_backward(module, loss, batch, before_backward)
        found.met += 1
        if found.met == 1:  # a run of few steps need not wait for a recording
            return super().forward_backward(module, loss, batch, before_backward)
        if found.program is None or found.agreed < 2:
            return self._compared(found, self._seen, module, loss, batch, before_backward)
        value, *gradients = found.program.run((*self._seen.tensors, *tensors))
        root = self._seen.root(found.order)
        self._clock.forward(batch.inputs, root)
        before_backward([root], True)
        record_gradients(False)  # hooks are called as autograd calls them; a plain pass records
        try:
            for i in found.order:
                parameter = self._seen.trained[i]
                parameter.grad = gradients[i]
                for hook in (*gradient_hooks(parameter).values(),):
                    hook(parameter)
        finally:
            record_gradients(True)
        assert value is not None
        return value

    def _found(self, module: nn.Module, loss: Loss, batch: Batch) -> PassRecording | None:
        """Returns the recording of such passes; None where this one cannot be replayed."""
        if self._seen is None or self._seen.module is not module or self._seen.loss != loss or self._seen.is_changed():
            try:
                self._seen = _SeenModel(module, loss, self._clock.hooks, self._recordings)
            except _UnknownError:
                self._seen, self._unknown = None, True
                return None
        if not self._seen.is_free():
            return None
        shapes = _shapes(batch.inputs), _shapes(batch.targets)
        return self._seen.recordings.get(shapes) or _kept(self._seen.recordings, shapes, PassRecording)

    def _compared(
        self,
        recording: PassRecording,
        seen: "_SeenModel",
        module: nn.Module,
        loss: Loss,
        batch: Batch,
        before_backward: BeforeBackward,
    ) -> Tensor:
        """Computes a pass by autograd, and compares it with what the recording gives."""
        with _watched(seen.trained) as made:
            value = super().forward_backward(module, loss, batch, before_backward)
        tensors = (*tensors_of(batch.inputs), *tensors_of(batch.targets))
        if len(recording.batch) == len(tensors) and all(map(_same, tensors, recording.batch)):
            return value
        inputs, expected = (*seen.tensors, *tensors), [value, *(made.get(i) for i in range(len(seen.trained)))]

        def compute() -> list[Tensor | None]:
            computed = loss(call(module.forward, batch.inputs), batch.targets)
            return [computed, *torch.autograd.grad(computed, seen.trained, allow_unused=True)]

        try:
            if recording.program is None:
                if any(type(x) is not Tensor or x.requires_grad or not x.is_cpu for x in tensors):
                    raise NotRecordable("a batch that is no plain tensors")
                recording.program = Program(compute, inputs)
                recording.program.own(inputs, expected)
                recording.order, recording.batch = (*made,), tensors
            agrees = recording.order == (*made,) and all(map(_same, recording.program.run(inputs), expected))
        except Exception:  # whatever a recording fails of, autograd did not
            agrees = False
        recording.agreed += agrees
        recording.fails |= not agrees
        if recording.fails or recording.agreed == 2:
            recording.batch = ()
        return value


@contextmanager
def _watched(parameters: Sequence[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Yields copies of the gradients that a backward pass gives to parameters, by number, in their order."""
    made: dict[int, Tensor] = {}

    def note(i: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        made[i] = parameter.grad.detach().clone()

    handles = [hook_first(each, partial(note, i)) for i, each in enumerate(parameters)]
    try:
        yield made
    finally:
        for each in handles:
            each.remove()


def _same(found: Tensor | None, expected: Tensor | None) -> bool:
    """Returns whether two tensors have the same bits and strides."""
    if found is None or expected is None:
        return found is expected
    if found.layout is not expected.layout or found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.stride() != expected.stride():
        return False
    return torch.equal(_bits(found), _bits(expected))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _shapes(samples: Samples) -> tuple[Any, ...]:
    """Returns what a recording holds for."""
    if isinstance(samples, Fields):
        return tuple((name, _looks(x)) for name, x in samples.tensors.items())
    return _looks(samples)


def _looks(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad, tensor.is_cpu


def _kept(known: dict[Any, T], key: Any, make: Callable[[], T]) -> T | None:
    """Returns what is kept by this key, at first what `make` makes; None where there are too many."""
    if key not in known and len(known) < MOST:
        known[key] = make()
    return known.get(key)


# -- models


class _UnknownError(Exception):
    """Nobody knows whether passes of the model are the same each time."""


class _SeenModel:
    """One worker's model and loss, as they were looked at.

    `tensors`: parameters and buffers. `recordings`: of all models and losses whose passes are the same operations.
    """

    def __init__(self, module: nn.Module, loss: Loss, hooks: Collection[int], recordings: Recordings) -> None:
        """`hooks`: of `module` itself, which may be there. Raises `_UnknownError`."""
        self.module, self.loss = module, loss
        layers = {each: i for i, each in enumerate(module.modules())}
        numbers: dict[Tensor, int] = {}
        # all that may change in layers
        self._plain: list[dict[str, Any]] = []  # attributes
        self._registries: list[dict[Any, Any]] = []  # parameters, buffers, children and hooks
        self._empty: list[dict[Any, Any]] = []  # of hooks
        if not module.training:
            raise _UnknownError
        told = tuple(self._layer(each, hooks if each is module else (), layers, numbers) for each in layers)
        self.tensors = (*numbers,)
        self.trained = [each for each in self.tensors if each.requires_grad]
        self._frozen = [each for each in self.tensors if not each.requires_grad]
        if not self.trained:
            raise _UnknownError
        self._values = [*chain.from_iterable(map(dict.values, self._plain))]
        self._objects = [*chain.from_iterable(map(dict.values, self._registries))]
        self._roots: dict[tuple[int, ...], Tensor] = {}
        found = _kept(recordings, (told, tuple(map(_looks, self.tensors)), _of_loss(loss)), OfModel)
        if found is None:
            raise _UnknownError
        self.recordings = found

    def _layer(
        self, layer: nn.Module, hooks: Collection[int], layers: dict[nn.Module, int], numbers: dict[Tensor, int]
    ) -> tuple[Any, ...]:
        """Returns all that a layer's operations depend on, but for what its tensors hold."""
        kind, own = type(layer), vars(layer)
        if not kind.__module__.startswith((_OURS, "torch.nn.modules.")) or hasattr(layer, "by_values"):
            raise _UnknownError
        told: list[tuple[str, Any]] = []
        self._plain.append(own)
        for name, value in own.items():
            if name == "_modules":
                self._registries.append(value)
                told += [(key, None if each is None else layers[each]) for key, each in value.items()]
            elif name in ("_parameters", "_buffers"):
                self._registries.append(value)
                told += [(key, _number(each, numbers)) for key, each in value.items()]
            elif name.startswith(("_forward_", "_backward_")):
                if not {*value} <= {*hooks}:
                    raise _UnknownError
                (self._registries if value else self._empty).append(value)
            elif not name.startswith(("_state_dict_", "_load_state_dict_", "_non_persistent_buffers_set")):
                told.append((name, _plain(value)))
        return kind, *told

    def is_changed(self) -> bool:
        """Returns whether passes may be others now."""
        if any(self._empty) or [*chain.from_iterable(map(dict.values, self._plain))] != self._values:
            return True
        objects = [*chain.from_iterable(map(dict.values, self._registries))]
        return len(objects) != len(self._objects) or not all(map(is_, objects, self._objects))

    def is_free(self) -> bool:
        """Returns whether all trained parameters, and no others, take a gradient as autograd makes it."""
        return takes_gradients(self.trained) and not any(each.requires_grad for each in self._frozen)

    def root(self, reached: tuple[int, ...]) -> Tensor:
        """Returns a tensor in place of the loss, from which autograd reaches these of the trained parameters."""
        if reached not in self._roots:
            self._roots[reached] = _Reaching.apply(*(self.trained[i] for i in reached))
        return self._roots[reached]


class _Reaching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("its backward pass was replayed")


def _number(tensor: Tensor | None, numbers: dict[Tensor, int]) -> int | None:
    """Returns the number of a layer's parameter or buffer; a new one where it is not among `numbers`."""
    if tensor is None:
        return None
    is_known = type(tensor) is nn.Parameter or (type(tensor) is Tensor and not tensor.requires_grad)
    if not is_known or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise _UnknownError
    return numbers.setdefault(tensor, len(numbers))


def _plain(value: Any) -> Any:
    """Returns the type and value of a plain value."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    if type(value) not in _PLAIN:
        raise _UnknownError
    return type(value), value


def _of_loss(loss: Any) -> Any:
    """Returns the function that a loss is, and the plain values that it has."""
    if isinstance(loss, partial):
        if loss.keywords:
            raise _UnknownError
        return tuple(map(_of_loss, (loss.func, *loss.args)))
    if isinstance(loss, MethodType):
        return loss.__func__.__code__, _of_loss(loss.__self__)
    if isinstance(loss, FunctionType):
        if loss.__closure__ or not loss.__module__.startswith(_OURS):
            raise _UnknownError
        return loss
    if not type(loss).__module__.startswith(_OURS):
        raise _UnknownError
    return type(loss), tuple((name, _plain(value)) for name, value in vars(loss).items())
