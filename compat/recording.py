"""Records the operations of torch that a computation calls, and calls them again without autograd: `_op` of an
operation, the functions of torch that take a call the fastest, and the guard below autograd.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from .dispatch import tree_leaves, written_by
from .passes import is_within_pass
from .storages import storage_key

_C = torch._C
_AUTOGRAD: Any = getattr(_C, "_autograd")  # noqa: B009  # its stubs lack it
_FUNCTIONS: tuple[Any, ...] = (getattr(_C, "_VariableFunctions"), getattr(_C, "_nn"), Tensor)  # noqa: B009
_MODULE: Any = nn.modules.module


Call = tuple[Any, Sequence[Any], Mapping[str, Any], Any]  # operation, arguments, named arguments, results


class NotRecordable(Exception):
    """A computation that is not the same operations each time, or does more than return results."""


class OperationRecorder(TorchDispatchMode):
    """Records the operations that are called while it is active, with their arguments and results, in order.

    Raises `NotRecordable` where an operation changes a tensor that no recorded one made, returns anything but dense
    tensors of the CPU, has results whose shapes follow from values, or where something sees the tensors that are saved
    for backward; and where results take more memory than they may.
    """

    def __init__(self, inputs: Sequence[Tensor], most: int) -> None:
        """`inputs`: of the computation. `most`: bytes of results, all of which are kept."""
        super().__init__()
        self.calls: list[Call] = []
        self._left = most
        self._given = {storage_key(each) for each in inputs}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_of_others = any(storage_key(each) not in self._made for each in written_by(func, args, kwargs))
        if is_of_others or torch.Tag.dynamic_output_shape in func.tags or sees_saved_tensors():
            raise NotRecordable(str(func))
        results = func(*args, **kwargs)
        if not any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs, results))):
            return results  # of dtypes and sizes
        if not all(each is None or _is_dense(each) for each in _several(results)):
            raise NotRecordable(str(func))
        made = [each for each in _several(results) if each is not None]
        self._made.update({storage_key(each) for each in made} - self._given)
        self._left -= sum(each.nbytes for each in made)
        if self._left < 0:
            raise NotRecordable("too large")
        self.calls.append((func, args, kwargs, results))
        return results


def _is_dense(tensor: Any) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"


def _several(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple | list) else (results,)


def below_autograd() -> AbstractContextManager[None]:
    """Returns a context in which operations keep nothing for autograd, and do not ask whether they should."""
    return getattr(_C, "_AutoDispatchBelowAutograd")()  # noqa: B009  # its stubs lack it


def record_gradients(records: bool) -> None:
    """Says whether operations in this thread keep what autograd needs; a context of torch's takes ten calls for it."""
    _C._set_grad_enabled(records)


def plain_call(operation: Any) -> Callable[..., Any]:
    """Returns a function that calls just this operation."""
    return operation._op


def fast_call(operation: Any) -> Callable[..., Any]:
    """Returns the function by the operation's name that parses its arguments the fastest. It may call another overload
    for some arguments.
    """
    name = operation._schema.name.removeprefix("aten::")
    return next((getattr(each, name) for each in _FUNCTIONS if hasattr(each, name)), plain_call(operation))


def sees_saved_tensors() -> bool:
    """Returns whether hooks see the tensors that are saved for backward."""
    return _AUTOGRAD._top_saved_tensors_default_hooks(False) is not None


def is_plain_pass() -> bool:
    """Returns whether a pass that begins here records gradients, and torch calls nothing else for it."""
    return (
        torch.is_grad_enabled()
        and not is_within_pass()
        and not sees_saved_tensors()
        and not torch.is_anomaly_enabled()
        and not _MODULE._has_any_global_hook()
    )


def gradient_hooks(parameter: Tensor) -> Mapping[int, Callable[[Tensor], None]]:
    """Returns the parameter's hooks that are called when it has its gradient."""
    return parameter._post_accumulate_grad_hooks or {}


def hook_first(parameter: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Has `hook` called when the parameter has its gradient, before its other hooks."""
    others = {**gradient_hooks(parameter)}
    handle = parameter.register_post_accumulate_grad_hook(hook)
    hooks: Any = parameter._post_accumulate_grad_hooks
    for each in others:  # autograd goes through the memory of the dict, which `move_to_end` leaves as it is
        del hooks[each]
    hooks.update(others)
    return handle


def takes_gradients(parameters: Sequence[Tensor]) -> bool:
    """Returns whether all of them want a gradient and have none yet, and no hook is called with it before."""
    return all(each.grad is None and each.requires_grad and not each._backward_hooks for each in parameters)
