"""Copies of modules, also with tensors that are plain attributes of a layer, as legacy weight_norm has them."""

import copy
from collections.abc import Callable, Iterator
from itertools import chain

from torch import Tensor, nn


def copy_of(module: nn.Module) -> nn.Module:
    """A deep copy. Tensors that are no leaves of the graph, which copy.deepcopy refuses, lose their history."""
    return copy.deepcopy(module, _made({id(each): each for each in _plain(module) if not each.is_leaf}, _detached))


def without_data(module: nn.Module) -> nn.Module:
    """A copy on the meta device, for shapes; tensors that are plain attributes of a layer go there too."""
    tensors = chain(module.parameters(), module.buffers(), _plain(module))
    return copy.deepcopy(module, _made({id(each): each for each in tensors}, _on_meta))


def _plain(module: nn.Module) -> Iterator[Tensor]:
    return (value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor))


def _made(tensors: dict[int, Tensor], function: Callable[[Tensor], Tensor]) -> dict[int, Tensor]:
    return {key: function(each) for key, each in tensors.items()}


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _on_meta(tensor: Tensor) -> Tensor:
    moved = tensor.detach().to("meta")
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
