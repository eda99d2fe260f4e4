"""Quicker passes on the meta device."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...compat.dispatch import TorchDispatchMode, results_of, writes
from ...compat.storages import storage_key

aten = torch.ops.aten
FILLS = {aten.fill_.Scalar, aten.zero_.default, aten.uniform_.default, aten.normal_.default}


class Repeats(TorchDispatchMode):
    """Reuses results on the meta device: an operation's results for arguments of known shapes have the shapes of the
    earlier ones.

    On the meta device torch works out in Python what many operations give, up to milliseconds each, and the blocks of a
    model are alike. Only new tensors are remembered: views stay views, and in-place operations go on as ever, but those
    that fill a tensor, which has nothing to fill.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Hashable, list[_Look | None] | None] = {}  # None: it gives others than new tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FILLS and args[0].is_meta:
            return args[0]
        if func.is_view or writes(func) or any(t.layout is not torch.strided for t in _tensors(args)):
            return func(*args, **kwargs)
        key = func, _key(args), _key(tuple(kwargs.items()))
        if known := self._known.get(key):
            results = [look and look.again() for look in known]
            return results[0] if results_of(func) == 1 else tuple(results)
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
