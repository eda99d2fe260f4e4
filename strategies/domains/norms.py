"""Normalisation over whole images of which each worker has a slab: Ioffe, Szegedy 2015 (arXiv 1502.03167), algorithm 1,
and Wu, He 2018 (arXiv 1803.08494), equation 7.

    y = w (x - mean) / sqrt(var + eps) + b

where mean and var are over the pixels of all slabs: for a channel over all samples of the batch (batch norm), or of
one sample over a group of channels (group norm). Worker i, with n_i of the n numbers, sends its mean_i and its sum of
squares around it, M_i; all workers compute, in the same order (Chan, Golub, LeVeque 1979, equation 2.1, for many
parts),

    mean = sum_i n_i mean_i / n,   var = sum_i (M_i + n_i (mean_i - mean)^2) / n.

In backward, with g = w dy and x' = (x - mean) / sqrt(var + eps), of which sum g and sum g x' are over all slabs, too,

    dx = (g - (sum g) / n - x' (sum g x') / n) / sqrt(var + eps).

Sent in a pass: two numbers of each statistic to each worker; in backward a sum of as many, with group norm those of the
gradients of w and b beside it. With batch norm these gradients are those sums.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .group import ROWS, Group
from .rows import Deal


class SlabBatchNorm(nn.Module):
    """Its running statistics are those of whole images, alike on all workers."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layer: nn.BatchNorm2d, deal: Deal, group: Group) -> None:
        super().__init__()
        self.deal, self.group, self.eps, self.momentum = deal, group, layer.eps, layer.momentum
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        mean, var = statistics(x.detach(), None, self.deal, self.group)
        if self.training and self.running_mean is not None:
            self._keep(mean.flatten(), var.flatten(), x.numel() // x.shape[1] // x.shape[ROWS] * self.deal[-1])
        return _Normalised.apply(x, self.weight, self.bias, mean, var, self)

    @torch.no_grad()
    def _keep(self, mean: Tensor, var: Tensor, n: int) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        assert self.momentum is not None, "of such a layer torch makes no pass on the meta device"
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (n / max(n - 1, 1)), self.momentum)


class SlabGroupNorm(nn.Module):
    def __init__(self, layer: nn.GroupNorm, deal: Deal, group: Group) -> None:
        super().__init__()
        self.deal, self.group, self.eps, self.num_groups = deal, group, layer.eps, layer.num_groups
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        mean, var = statistics(x.detach(), self.num_groups, self.deal, self.group)
        return _Normalised.apply(x, self.weight, self.bias, mean, var, self)


def statistics(x: Tensor, groups: int | None, deal: Deal, group: Group) -> tuple[Tensor, Tensor]:
    """x [n, c, rows, width] -> mean and variance over all slabs, [1, c] or, by groups of channels, [n, groups]."""
    if groups is None:
        var, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)  # [c]
    else:
        var, mean = torch.var_mean(x.reshape(len(x), groups, -1), dim=2, correction=0)  # [n, groups]
    all_means, all_vars = group.gather(torch.stack([mean, var]), "statistics").unbind(1)  # [workers, ...]
    shares = mean.new_tensor([(end - first) / deal[-1] for first, end in pairwise(deal)])  # n_i / n
    shares = shares.view(-1, *[1] * mean.dim())
    total = (all_means * shares).sum(0)
    squares = ((all_vars + (all_means - total).square()) * shares).sum(0)
    return total.view(-1, mean.shape[-1]), squares.view(-1, mean.shape[-1])


class _Normalised(torch.autograd.Function):
    """It keeps x and the statistics, as torch's own layers do."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        layer: SlabBatchNorm | SlabGroupNorm,
    ) -> Tensor:
        inverse = (var + layer.eps).rsqrt()
        scale = by_channel(inverse, x) if weight is None else by_channel(inverse, x) * weight.view(1, -1, 1, 1)
        shift = -by_channel(mean, x) * scale
        ctx.layer = layer
        ctx.save_for_backward(x, weight, mean, inverse)
        return torch.addcmul(shift if bias is None else shift + bias.view(1, -1, 1, 1), x, scale)

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        layer, (dy,) = ctx.layer, grad_outputs
        x, weight, mean, inverse = ctx.saved_tensors
        scaled = (x - by_channel(mean, x)) * by_channel(inverse, x)  # x'
        db, dw = dy.sum((2, 3)), (dy * scaled).sum((2, 3))  # [n, c], of this slab
        w = torch.ones_like(db[0]) if weight is None else weight
        if isinstance(layer, SlabBatchNorm):
            db, dw = layer.group.sum(torch.stack([db.sum(0), dw.sum(0)]), "gradients of statistics")  # [c], of all
            of_g, of_gx = (w * db).view(1, -1), (w * dw).view(1, -1)
            n = x.numel() // x.shape[1]
        else:
            sums = [(w * each).view(*mean.shape, -1).sum(2) for each in (db, dw)]  # [n, groups]
            parts = [*sums, db.sum(0), dw.sum(0)]
            total = layer.group.sum(torch.cat([each.flatten() for each in parts]), "gradients of statistics")
            of_g, of_gx, db, dw = (
                each.view_as(part)
                for each, part in zip(total.split([part.numel() for part in parts]), parts, strict=True)
            )
            n = x.numel() // mean.numel()
        n = n // x.shape[ROWS] * layer.deal[-1]
        # dx = (g - (sum g) / n - x' (sum g x') / n) / sqrt(var + eps)
        dx = dy * w.view(1, -1, 1, 1)
        dx -= by_channel(of_g / n, x)
        dx -= scaled.mul_(by_channel(of_gx / n, x))
        dx *= by_channel(inverse, x)
        wanted = ctx.needs_input_grad
        return dx if wanted[0] else None, dw if wanted[1] else None, db if wanted[2] else None, None, None, None


def by_channel(statistic: Tensor, x: Tensor) -> Tensor:
    """[1, c] or [n, groups] -> [1 or n, c, 1, 1]"""
    return statistic.repeat_interleave(x.shape[1] // statistic.shape[1], dim=1)[:, :, None, None]
