"""Copies of modules, also with tensors that are plain attributes of a layer, as legacy weight_norm has them, and with
functions in a layer (a forward that was replaced, a hook) that close over layers of the module.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...compat.copying import with_locks_and_files
from ...compat.storages import storage_key
from ...conf.errors import ConfigError
from .memory_format import is_dense

_DEEPEST = 4  # of lists in lists: one may hold itself
Module = TypeVar("Module", bound=nn.Module)


def copied(module: Module, known: dict[int, Any] | None = None, is_alone: bool = False) -> Module:
    """Returns copy.deepcopy(module, known), in which functions use the copies of what they use in `module`. Locks of
    the copy are new ones, and files and Python modules are those of `module`.

    Args:
        known: what stands for an object, by the object's id.
        is_alone: `module` does not compute beside the copy, which has its generators.

    Raises:
        ConfigError: It holds an object that cannot be copied.
    """
    memo = dict(known or {})
    functions = [each for each in _functions(module) if _reaches(each, {*map(id, _own(module))}, set())]
    memo |= {id(each): _without_cells(each) for each in functions}
    with with_locks_and_files(generators=is_alone):
        try:
            made = copy.deepcopy(module, memo)
        except TypeError as error:
            raise _uncopied(module, error) from error
    for one, its in zip(module.parameters(), made.parameters(), strict=True):
        if not its.is_leaf:  # of a ScriptModule, which copies tensors by an operation of autograd
            its.detach_().requires_grad_(one.requires_grad)
    for each in functions:
        own: FunctionType = memo[id(each)]
        for cell, its in zip(own.__closure__ or (), each.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                cell.cell_contents = _counterpart(its.cell_contents, memo)
        own.__defaults__ = _counterpart(each.__defaults__, memo)
        own.__kwdefaults__ = _counterpart(each.__kwdefaults__, memo)
    return made


def copy_of(module: Module) -> Module:
    """Returns a deep copy. Tensors that are no leaves of the graph, which copy.deepcopy refuses, lose their history."""
    return copied(module, {id(each): each.detach().clone() for each in _plain(module) if not each.is_leaf})


def without_data(module: Module, device: str = "meta", plain: bool = True) -> Module:
    """Returns a copy whose tensors are empty. `plain`: those that are plain attributes of a layer too, not shared."""
    empty = {id(each): _empty(each, device) for each in _registered(module)}
    plainly = {id(each): _empty(each, device) if plain else each for each in _plain(module)}
    made = copied(module, plainly | empty, is_alone=True)
    for layer in made.modules():
        if isinstance(layer, torch.jit.ScriptModule):  # which copies its tensors, whatever stands for them
            for name, each in chain(layer.named_parameters(recurse=False), layer.named_buffers(recurse=False)):
                setattr(layer, name, _empty(each, device).requires_grad_(each.requires_grad))
    return made


def with_tensors_of(module: Module) -> Module:
    """Returns a copy that has the tensors of `module` itself."""
    return copied(module, {id(each): each for each in chain(_registered(module), _plain(module))}, is_alone=True)


def let_go(model: nn.Module, own: nn.Module) -> None:
    """Frees the tensors of `model` that `own`, a part of it, does not hold. Nobody may use them any more."""
    kept = {id(each) for each in _registered(own)}
    for tensor in _registered(model):
        if id(tensor) not in kept:
            tensor.data = tensor.data.new_empty(0)


def give_own_memory(module: nn.Module) -> None:
    """Gives parameters and buffers dense memory, in which each element has its own place.

    Loading, summing and receiving cannot write to results of torch.expand. Messages, and the fused optimizers of torch,
    take a tensor's memory as one run, without the holes of a slice of columns. A tensor that has elements in common
    with another one keeps its memory.
    """
    sharing = defaultdict[Any, list[Tensor]](list)
    for each in {id(each): each for each in _registered(module) if each.layout is torch.strided}.values():
        sharing[storage_key(each)].append(each)
    for tensors in sharing.values():
        loose = [each for each in tensors if not is_dense(each)]
        if loose and not _overlap(tensors):
            for each in loose:
                each.data = each.detach().clone(memory_format=torch.contiguous_format)


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Returns whether two tensors of one storage have elements in common. Those of several dtypes are taken to."""
    if len(tensors) == 1 or len({each.dtype for each in tensors}) > 1:
        return len(tensors) > 1
    is_taken = torch.zeros(tensors[0].untyped_storage().nbytes() // tensors[0].element_size(), dtype=torch.bool)
    for each in tensors:
        shape = [size if stride else min(size, 1) for size, stride in zip(each.shape, each.stride(), strict=True)]
        own = is_taken.as_strided(shape, each.stride(), each.storage_offset())
        if bool(own.any()):
            return True
        own.fill_(True)
    return False


def closed_over(module: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters and buffers that functions in the layers of `module` use, also of other modules."""
    for each in chain.from_iterable(map(_used, _functions(module))):
        if isinstance(each, nn.Module):
            yield from _registered(each)
        elif isinstance(each, Tensor):
            yield each


def kept_tensors(layers: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Yields the tensors that layers keep beside parameters: buffers, plain attributes, in lists, in functions."""
    for layer in layers:
        own = {key: value for key, value in vars(layer).items() if key not in ("_parameters", "_modules")}
        for each in _inside(list(own.values())):
            for found in _used(each) if isinstance(each, FunctionType) else [each]:
                if isinstance(found, Tensor) and not isinstance(found, nn.Parameter):
                    yield found


def _registered(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _plain(module: nn.Module) -> Iterator[Tensor]:
    return (value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor))


def _empty(tensor: Tensor, device: str) -> Tensor:
    empty = torch.empty_like(tensor.detach(), device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


# -- objects without a copy


def _uncopied(module: nn.Module, error: TypeError) -> Exception:
    """Returns the error for the attribute that cannot be copied; `error` where none is found."""
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                copy.deepcopy(value, {id(each): each for each in _own(module)})
            except TypeError as found:
                return ConfigError(
                    f"model: {type(module).__name__} has no copy, with which passes are estimated and layers split: "
                    f"{f'{path}.{name}'.lstrip('.')} is a {type(value).__name__} ({found}). Use an object with a "
                    "__deepcopy__ in its place, or strategy=data_parallel hardware=local"
                )
            except Exception:
                continue
    return error


# -- functions


def _own(module: nn.Module) -> Iterator[object]:
    return chain(module.modules(), _registered(module), _plain(module))


def _functions(module: nn.Module) -> Iterator[FunctionType]:
    """Yields the functions that layers hold as attributes and hooks, and the functions that these use, each once."""
    seen: set[int] = set()
    waiting = [each for layer in module.modules() for value in vars(layer).values() for each in _inside(value)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, FunctionType) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += _used(each)


def _used(function: FunctionType) -> Iterator[Any]:
    """Yields what a function closes over or has as defaults; of a bound method its object."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield from _inside(cell.cell_contents)
    yield from _inside([function.__defaults__, function.__kwdefaults__])


def _inside(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict) and depth < _DEEPEST:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _inside(each, depth + 1)
    else:
        yield value.__self__ if isinstance(value, MethodType) else value


def _reaches(function: FunctionType, own: set[int], seen: set[int]) -> bool:
    """Returns True if a function uses one of the objects with the ids `own`, maybe by another function."""
    seen.add(id(function))
    return any(
        id(each) in own or (isinstance(each, FunctionType) and id(each) not in seen and _reaches(each, own, seen))
        for each in _used(function)
    )


def _without_cells(function: FunctionType) -> FunctionType:
    cells = tuple(CellType() for _ in function.__closure__ or ())
    own = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
    own.__qualname__, own.__dict__ = function.__qualname__, dict(vars(function))
    return own


def _counterpart(value: Any, memo: dict[int, Any]) -> Any:
    """Returns the copy of what `value` is or holds of the module, and `value` where that is nothing."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _counterpart(value.__self__, memo))
    if type(value) in (list, tuple):
        return type(value)(_counterpart(each, memo) for each in value)
    return {key: _counterpart(each, memo) for key, each in value.items()} if type(value) is dict else value
