"""Standing between torch and its operations, and what an operation says of itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    "FakeTensorMode",
    "TorchDispatchMode",
    "aliases_first",
    "draws",
    "has_values",
    "log_softmax",
    "results_of",
    "tree_leaves",
    "tree_map_only",
    "unbind",
    "writes",
    "written_by",
]

log_softmax = torch.ops.aten._log_softmax.default
unbind = torch.ops.aten.unbind.int


def writes(operation: Any) -> bool:
    """Returns whether the operation changes one of its arguments."""
    return operation._schema.is_mutable


def aliases_first(name: str) -> bool:
    """Returns whether what the operation `aten.NAME` returns may be in the memory of its first argument."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    schemas = [getattr(packet, each)._schema for each in packet.overloads()] if packet else []
    return any(each.arguments and each.arguments[0].alias_info is not None for each in schemas)


def draws(name: str) -> bool:
    """Returns whether the operation `aten.NAME` draws random numbers."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    overloads = [getattr(packet, each) for each in packet.overloads()] if packet else []
    return any(torch.Tag.nondeterministic_seeded in each.tags for each in overloads)


def has_values(tensor: Tensor) -> bool:
    """Returns False for a tensor that has a shape alone: on the meta device, or of a fake mode."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def results_of(operation: Any) -> int:
    """Returns the number of results; more than one come as a tuple."""
    return len(operation._schema.returns)


def written_by(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Returns the tensors in these arguments that the operation changes."""
    if not writes(operation):
        return []
    changed = [each.alias_info is not None and each.alias_info.is_write for each in operation._schema.arguments]
    named = [each.name for each, its in zip(operation._schema.arguments, changed, strict=True) if its]
    given = [each for each, its in zip(args, changed, strict=False) if its] + [kwargs.get(name) for name in named]
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
