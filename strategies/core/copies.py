"""Copies of modules, also with tensors that are plain attributes of a layer, as legacy weight_norm has them."""

import copy
from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def copy_of(module: Module) -> Module:
    """Returns a deep copy. Tensors that are no leaves of the graph, which copy.deepcopy refuses, lose their history."""
    return copy.deepcopy(module, {id(each): each.detach().clone() for each in _plain(module) if not each.is_leaf})


def without_data(module: Module, device: str = "meta", plain: bool = True) -> Module:
    """Returns a copy whose tensors are empty. `plain`: those that are plain attributes of a layer too, not shared."""
    empty = {id(each): _empty(each, device) for each in _registered(module)}
    return copy.deepcopy(module, {id(each): _empty(each, device) if plain else each for each in _plain(module)} | empty)


def let_go(model: nn.Module, own: nn.Module) -> None:
    """Frees the tensors of `model` that `own`, a part of it, does not hold. Nobody may use them any more."""
    kept = {id(each) for each in _registered(own)}
    for tensor in _registered(model):
        if id(tensor) not in kept:
            tensor.data = tensor.data.new_empty(0)


def _registered(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _plain(module: nn.Module) -> Iterator[Tensor]:
    return (value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor))


def _empty(tensor: Tensor, device: str) -> Tensor:
    empty = torch.empty_like(tensor.detach(), device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
