"""Gradients in flat buckets (Li et al. 2020, "PyTorch Distributed", section 3.2.2).

Parameters go to buckets in reverse order, which is about the order in which backward makes their gradients ready, so
that a bucket fills while the rest of backward goes on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..strategies.core.memory_format import laid_out


@dataclass
class Bucket:
    """`flat` holds the gradients of `parameters` (indices) one after another; `views` are their places in it."""

    parameters: list[int]
    flat: Tensor
    views: dict[int, Tensor]
    missing: set[int] = field(default_factory=set)

    @property
    def key(self) -> str:
        """Names the bucket's messages."""
        return key_of(self.parameters)

    def view(self, i: int) -> Tensor:
        return self.views[i]

    def give_back(self, parameters: Sequence[nn.Parameter], unused: Collection[int]) -> None:
        """Sets the gradients of all parameters to the bucket's; parameters in `unused` get none."""
        for i in self.parameters:
            # a tensor of its own: a script may give it other memory (p.grad.data = ...)
            parameters[i].grad = None if i in unused else laid_out(self.views[i].detach(), parameters[i])


def key_of(members: Sequence[int]) -> str:
    """Returns the name of the messages of a bucket with these parameters."""
    return str(members[0])


def assign(sizes: Sequence[int], capacity: int, first: int) -> list[list[int]]:
    """Indices by bucket: parameters of `sizes` bytes in reverse order, a bucket closed once it holds its capacity.

    The first bucket closes at `first` bytes, so that communication starts early in backward.
    """
    buckets: list[list[int]] = [[]]
    held, limit = 0, first
    for i in reversed(range(len(sizes))):
        if buckets[-1] and held + sizes[i] > limit:
            buckets.append([])
            held, limit = 0, capacity
        buckets[-1].append(i)
        held += sizes[i]
    return buckets


def grouped(parameters: Sequence[Tensor], capacity: int, first: int) -> list[list[int]]:
    """Indices by bucket, as `assign` has them; parameters of different dtypes never share a bucket."""
    buckets: list[list[int]] = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in reversed(parameters)):
        of_dtype = [i for i, parameter in enumerate(parameters) if parameter.dtype == dtype]
        sizes = [parameters[i].numel() * dtype.itemsize for i in of_dtype]
        buckets += [[of_dtype[j] for j in members] for members in assign(sizes, capacity, first)]
    return buckets


def allocate(parameters: Sequence[Tensor], capacity: int, first: int) -> list[Bucket]:
    """Buckets with memory behind them."""
    return [_bucket(indices, [parameters[i] for i in indices]) for indices in grouped(parameters, capacity, first)]


def _bucket(indices: list[int], tensors: list[Tensor]) -> Bucket:
    flat = torch.zeros(sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device=tensors[0].device)
    return Bucket(indices, flat, dict(zip(indices, views_of(flat, tensors), strict=True)))


def put_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    """Gives the parameters these gradients for a step. An optimizer may have dropped or replaced those before."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = laid_out(gradient, parameter)


def views_of(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The pieces of `flat` in the shapes of `like`, sharing its memory."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]
