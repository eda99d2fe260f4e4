"""The placement of a parameter's entries among the workers of one replica, and its consequences.

A layer that holds a piece of a parameter says so in `placements`, by the parameter's own name:

    class ColumnLinear(nn.Module):
        placements: ClassVar = {"weight": Shard(0), "bias": Shard(0)}

Every other tensor of a part is whole: replicated along the axes on which layers are cut, on one stage alone along
`stage`. A piece is that of its worker's place on the axis, and the same on all workers of that place. `mesh`: of the
workers of one replica.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...comm import Comm
from .mesh import Mesh
from .state import state_of

Name = TypeVar("Name")


@dataclass(frozen=True)
class Shard:
    """Cut into as many pieces as `axis` has workers, along dimension `dim`, in their order."""

    dim: int
    axis: str = "tensor"


def placements_of(part: nn.Module) -> dict[str, Shard]:
    """Returns the `Shard` of each cut parameter, by its name in the whole model. Parameters that are not there are
    whole.
    """
    found: dict[str, Shard] = {}
    of_weights: dict[int, Shard] = {}
    for name, layer in part.named_modules():
        for own, split in getattr(type(layer), "placements", {}).items():
            found[f"{name}.{own}" if name else own] = split
            of_weights[id(getattr(layer, own))] = split
    # a tied weight is cut under each of its names
    every = part.named_parameters(remove_duplicate=False)
    return {**found, **{name: of_weights[id(weight)] for name, weight in every if id(weight) in of_weights}}


def pieces_of(part: nn.Module, mesh: Mesh, rank: int) -> dict[str, int]:
    """Returns the index of the piece that the worker holds of each cut parameter."""
    position = mesh.position(rank)
    return {name: position[split.axis] for name, split in placements_of(part).items()}


def owned(parts: Sequence[nn.Module], mesh: Mesh) -> list[list[str]]:
    """Returns, for each part, the names of its tensors that no earlier part has, whole or as the same piece.

    Together they are the whole model's.
    """
    seen: set[tuple[str, int | None]] = set()
    found: list[list[str]] = []
    for rank, part in enumerate(parts):
        pieces = pieces_of(part, mesh, rank)
        held = {name: (name, pieces.get(name)) for name in state_of(part)}
        found.append([name for name, piece in held.items() if piece not in seen])
        seen.update(held.values())
    return found


def entries(parts: Sequence[nn.Module], mesh: Mesh) -> list[int]:
    """Returns, for each part, the number of parameter entries that it owns. Their sum is the whole model's."""
    named = [dict(part.named_parameters()) for part in parts]
    return [
        sum(named[i][name].numel() for name in names if name in named[i]) for i, names in enumerate(owned(parts, mesh))
    ]


def joined(states: Sequence[Mapping[str, Tensor]], dims: Mapping[str, int]) -> dict[str, Tensor]:
    """The whole model's state, of what each part owns of it, in the order of parts.

    `dims`: the dimension in which a tensor is cut, for those that are.
    """
    whole: dict[str, Tensor] = {}
    for state in states:
        for name, tensor in state.items():
            if name not in whole:
                pieces = [other[name] for other in states if name in other] if name in dims else []
                whole[name] = torch.cat(pieces, dim=dims[name]) if pieces else tensor
    return whole


def dims_of(parts: Sequence[nn.Module]) -> dict[str, int]:
    return {name: split.dim for part in parts for name, split in placements_of(part).items()}


def gather(
    mine: Mapping[str, Tensor], parts: Sequence[nn.Module], mesh: Mesh, comm: Comm, to: int
) -> dict[str, Tensor] | None:
    """The whole model's state at worker `to` of the replica, on the host, where it may be larger than a device; None
    elsewhere. `parts`: all of them, for their shapes.
    """
    names = owned(parts, mesh)
    if comm.rank != to:
        for name in names[comm.rank]:
            comm.send(mine[name].detach().contiguous(), to)
        return None
    device = next(iter(mine.values())).device
    states: list[Mapping[str, Tensor]] = []
    for i, part in enumerate(parts):
        shapes, state = state_of(part), dict[str, Tensor]()
        for name in names[i]:
            if i == to:
                state[name] = mine[name].cpu()
                continue
            # contiguous, as messages are, whatever the weight's strides
            received = torch.empty(shapes[name].shape, dtype=shapes[name].dtype, device=device)
            comm.recv(received, i)
            state[name] = received.cpu()
        states.append(state)
    return joined(states, dims_of(parts))


def kept_by_first(comm: Comm, gathered: Iterable[tuple[Name, Any]]) -> dict[Name, Any]:
    """Returns, on replica 0 and on the host, what all replicas gather, one after the other; {} elsewhere."""
    kept: dict[Name, Any] = {}
    for name, whole in gathered:
        if comm.rank == 0:
            kept[name] = whole.cpu() if isinstance(whole, Tensor) else whole
    return kept
