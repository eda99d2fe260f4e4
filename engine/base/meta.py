"""Quicker passes on the meta device."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...compat.dispatch import TorchDispatchMode, log_softmax, results_of, writes
from ...compat.storages import storage_key

aten = torch.ops.aten
FILLS = {aten.fill_.Scalar, aten.zero_.default, aten.uniform_.default, aten.normal_.default}
PRODUCTS = {aten.mm.default, aten.addmm.default}  # the meta device takes factors of two dtypes, the CPU does not


class Repeats(TorchDispatchMode):
    """Reuses results on the meta device: an operation's results for arguments of known shapes have the shapes of the
    earlier ones.

    On the meta device torch works out in Python what many operations give, up to milliseconds each, and the blocks of a
    model are alike. Only new tensors are remembered: views stay views, and in-place operations go on as ever, but those
    that fill a tensor or add one of its own shape, where nothing is there to change.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Hashable, list[_Look | None] | None] = {}  # None: it gives others than new tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (func in FILLS or (func is aten.add_.Tensor and _alike(args))) and args[0].is_meta:
            return args[0]
        if (
            func.is_view
            or writes(func)
            or not results_of(func)
            or any(t.layout is not torch.strided for t in _tensors(args))
        ):
            return func(*args, **kwargs)
        key = func, _key(args), _key(tuple(kwargs.items()))
        if known := self._known.get(key):
            results = [look and look.again() for look in known]
            return results[0] if results_of(func) == 1 else tuple(results)
        if not any(kwargs.values()) and (looks := _evident(func, args)):
            self._known[key] = looks
            return self.__torch_dispatch__(func, types, args, kwargs)
        if func in PRODUCTS and len({each.dtype for each in _tensors(args)}) > 1:
            func(*(torch.empty([0] * each.dim(), dtype=each.dtype) for each in _tensors(args)))  # raises
        results = func(*args, **kwargs)
        if key not in self._known:
            given = [results] if results_of(func) == 1 else results
            self._known[key] = _looks(given, [*args, *kwargs.values()])
        return results


class _Look(NamedTuple):
    """All that there is of a tensor without data."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def again(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


def _evident(func: Any, args: Sequence[Any]) -> list[_Look | None] | None:
    """Returns the shapes that a linear layer, a ReLU, a cross-entropy and a copy give where they are plain, else None.

    torch imports sympy to work them out, which takes a fifth of the time that it takes to import torch.
    """
    evident = EVIDENT.get(func)
    if evident is None or not all(type(each) in (Tensor, nn.Parameter) and each.is_meta for each in _tensors(args)):
        return None
    shapes = evident(*args)
    return shapes and [_look(torch.empty(shape, dtype=args[0].dtype, device="meta")) for shape in shapes]


def _alike(args: Sequence[Any]) -> bool:
    """Returns whether the arguments are tensors of one shape and type."""
    return len({(each.shape, each.dtype) if isinstance(each, Tensor) else None for each in args}) == 1


def _linear(bias: Tensor, x: Tensor, weight: Tensor) -> list[torch.Size] | None:
    alike = bias.dtype == x.dtype == weight.dtype and x.is_floating_point()
    fits = x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[0] and bias.shape == weight.shape[1:]
    return [x.shape[:1] + bias.shape] if alike and fits else None


def _elementwise(x: Tensor) -> list[torch.Size] | None:
    return [x.shape] if x.is_contiguous() and x.is_floating_point() else None


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> list[torch.Size] | None:
    return _elementwise(x) if -x.dim() <= dim < x.dim() and not half_to_float else None


def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> list[torch.Size] | None:
    fits = x.is_floating_point() and x.dim() == 2 and target.shape == x.shape[:1] and target.dtype == torch.int64
    return [torch.Size()] * 2 if fits and weight is None and reduction > 0 else None  # 0: a loss for each sample


EVIDENT = {
    aten.addmm.default: _linear,
    aten.clone.default: _elementwise,
    aten.relu.default: _elementwise,
    aten.zeros_like.default: _elementwise,
    log_softmax: _log_softmax,
    aten.nll_loss_forward.default: _nll_loss,
}


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return _look(value), value.storage_offset()
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return type(value), value


def _look(tensor: Tensor) -> _Look:
    return _Look(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _looks(results: Sequence[Any], arguments: Sequence[Any]) -> list[_Look | None] | None:
    """Returns the shapes of an operation's results; None unless all of them are new tensors without data."""
    storages = {storage_key(tensor) for tensor in _tensors(arguments)}
    looks: list[_Look | None] = []
    for result in results:
        if result is None:
            looks.append(None)
            continue
        if not isinstance(result, Tensor) or not result.is_meta or result.layout is not torch.strided:
            return None
        look, storage = _look(result), result.untyped_storage()
        if storage_key(result) in storages or storage.nbytes() != look.again().untyped_storage().nbytes():
            return None
        storages.add(storage_key(result))
        looks.append(look)
    return looks


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    nested = [value if isinstance(value, list | tuple) else [value] for value in values]
    return [value for group in nested for value in group if isinstance(value, Tensor)]
