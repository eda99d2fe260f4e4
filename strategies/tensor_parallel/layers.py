"""Linear layers of which a worker has some columns, or some rows.

    column    Y_i = X A_i            dX = sum_i dY_i A_i'   an all-reduce in backward, where X wants a gradient
    row       Z = sum_i Y_i B_i      an all-reduce in forward

With `sequence` (Korthikanti et al. 2022, section 4.2.2) what is whole above is a slice of the sequence on each worker:
X is gathered before A, and again in backward for A's gradient, so that no worker keeps it; dX and Z are
reduce-scattered, and dZ is gathered.

The sum of dX goes on while A's gradient is computed. B's bias is added by the first piece alone, before the sum.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.placements import Shard
from ..core.precision import narrowed
from .group import TensorGroup


class ColumnLinear(nn.Module):
    """A linear layer's outputs of one piece; its input is all of it, the same on all workers."""

    placements: ClassVar = {"weight": Shard(0), "bias": Shard(0)}

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, piece: int, group: TensorGroup, sequence: bool):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.piece, self.group, self.sequence = piece, group, sequence

    def forward(self, x: Tensor) -> Tensor:
        y = column(x, self.weight, self.bias, self.group, self.sequence)
        if self.training and not self.sequence:  # in a sequence's slices the piece draws anyway
            self.group.draws.enter(self.piece, x.device)
        return y


class RowLinear(nn.Module):
    """A linear layer over one piece of its inputs, summed over the pieces: its output is all of it, on all workers."""

    placements: ClassVar = {"weight": Shard(1)}

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, piece: int, group: TensorGroup, sequence: bool):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.piece, self.group, self.sequence = piece, group, sequence

    def forward(self, x: Tensor) -> Tensor:
        if not self.sequence:
            self.group.draws.leave(x.device)
        first = self.piece == 0
        z: Tensor = _Row.apply(narrowed(x), self.weight, self.bias, first, self.group, self.sequence)
        return z


def column(x: Tensor, weight: Tensor, bias: Tensor | None, group: TensorGroup, sequence: bool) -> Tensor:
    y: Tensor = _Column.apply(narrowed(x), weight, bias, group, sequence)
    return y


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Applies a linear layer in the dtype of `x`. Unlike autograd, the layers keep no rounded weights for backward."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: TensorGroup, sequence: bool) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        ctx.group, ctx.sequence = group, sequence
        # Y_i = X A_i
        return _linear(group.gather(x, "activations") if sequence else x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, weight), group = grad_outputs, ctx.saved_tensors, ctx.group
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        rows, dx, sum_ = dy.reshape(-1, dy.shape[-1]), None, None
        if wants_x:  # dX = sum_i dY_i A_i'
            dx = (rows @ weight.to(dy.dtype)).view(*dy.shape[:-1], -1)
            if ctx.sequence:
                dx = group.scatter_sum(dx, "gradients of inputs")
            else:
                sum_ = group.begin_sum(dx, "gradients of inputs")
        dw = None
        if wants_weight:
            whole = group.gather(x, "activations") if ctx.sequence else x
            dw = (rows.T @ whole.reshape(-1, whole.shape[-1])).to(weight.dtype)
        db = rows.sum(0).to(weight.dtype) if wants_bias else None
        if sum_ is not None:
            sum_.wait()
        return dx, dw, db, None, None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, first: bool, group: TensorGroup, sequence: bool
    ) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        ctx.group, ctx.sequence = group, sequence
        # Z = sum_i Y_i B_i
        z = _linear(x, weight, bias if first else None)
        return group.scatter_sum(z, "activations") if sequence else group.sum(z, "activations")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (dz,), (x, weight) = grad_outputs, ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        if ctx.sequence:
            dz = ctx.group.gather(dz, "gradients of outputs")
        rows = dz.reshape(-1, dz.shape[-1])
        dx = (rows @ weight.to(dz.dtype)).view(*dz.shape[:-1], -1) if wants_x else None
        dw = (rows.T @ x.reshape(-1, x.shape[-1])).to(weight.dtype) if wants_weight else None
        db = rows.sum(0).to(weight.dtype) if wants_bias else None
        return dx, dw, db, None, None, None
