"""Weights that stages on several workers share: GPT's embedding and head on the first and the last stage, say.

Each of these workers holds a copy, and has the gradient of the uses in its own stages. After the backward passes of a
batch, and before the update,

    g = sum_i g_i, on all of them,

so that copies, which begin alike, stay alike. That is the gradient of serial training: bit for bit where there is one
micro-batch, else but for the order of the sum, since serial training adds micro-batch after micro-batch.

Cost per step: an all-reduce of each such weight among its holders; of two, each sends the weight's bytes once.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ...comm import Comm
from ...exchange.collectives import Fabric
from ...exchange.collectives.base import added
from ..core.cost import Traffic, World, payload
from ..core.memory_format import laid_out


def tied(parts: Sequence[nn.Module]) -> dict[str, list[int]]:
    """The weights that several parts hold, by their names -> those parts."""
    holders: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        for name, weight in part.named_parameters():
            if weight.requires_grad:
                holders.setdefault(name, []).append(i)
    return {name: its for name, its in holders.items() if len(its) > 1}


def traffic(parts: Sequence[nn.Module]) -> list[Traffic]:
    """Returns the traffic of a step, by part."""
    shared = tied(parts)
    return [
        added(
            *(
                Fabric().traffic(payload([part.get_parameter(name)]), World(len(its)))
                for name, its in shared.items()
                if i in its
            )
        )
        for i, part in enumerate(parts)
    ]


class Ties:
    """One worker's. Every worker of the replica makes one."""

    def __init__(self, holders: Mapping[str, Sequence[int]], module: nn.Module, comm: Comm) -> None:
        """`holders`: as `tied` says. `module`: this worker's part."""
        self._weights: list[tuple[nn.Parameter, Comm]] = []
        groups: dict[tuple[int, ...], Comm | None] = {}
        for name, its in holders.items():
            if tuple(its) not in groups:
                groups[tuple(its)] = comm.split(0 if comm.rank in its else None)
            group = groups[tuple(its)]
            if group is not None:
                self._weights.append((module.get_parameter(name), group))

    def __bool__(self) -> bool:
        return bool(self._weights)

    def sum(self) -> None:
        """A batch's backward passes are over."""
        for weight, group in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradient = weight.grad.to_dense().contiguous()  # that of an embedding may be sparse
            with group.timeline.named("tied gradients"):
                group.all_reduce(gradient).wait()
            weight.grad = laid_out(gradient, weight)
