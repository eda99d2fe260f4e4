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

Batch norm may be over the batches of all replicas (`Across`). Replica j, which has n_j of the n samples, sends its
mean_j, var_j and n_j to the others, and they are joined in the same way. A sync mode weighs gradients by n_j / n, as in
L = sum_j (n_j / n) L_j, so that each replica goes on with the gradient of L by its activations, divided by n_j / n:

    dx_j = (g_j - G / m_j - x' G' / m_j) / sqrt(var + eps),   G = sum_i (n_i / n) (sum g)_i,   G' likewise of g x',

where m_j is how many numbers of a channel replica j has. Those of w and b are its own sums. Sent to replicas: 2 c + 1
numbers for c channels, and in backward a sum of 2 c.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.precision import widened
from .group import ROWS, SlabGroup
from .replicas import Across, BatchNorm
from .rows import Deal


class SlabBatchNorm(nn.Module):
    """Batch norm with running statistics of whole images, alike on all workers, and with `across` on all replicas."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layer: BatchNorm, deal: Deal, group: SlabGroup, across: Across | None = None) -> None:
        """`layer`: an nn.BatchNorm2d, or of any dimensions where `deal` gives one worker all."""
        super().__init__()
        self.deal, self.group, self.across, self.eps, self.momentum = deal, group, across, layer.eps, layer.momentum
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        wide = widened(x)  # sums of many
        slab = wide if self.group.degree > 1 else wide.reshape(len(x), x.shape[1], 1, -1)  # [n, c, rows, width]
        mean, var = statistics(slab.detach(), None, self.deal, self.group)
        samples: int | Tensor = len(x)
        if (across := self.others()) is not None:
            mean, var, samples = across.gather(mean, var, len(x))
        if self.training and self.running_mean is not None:
            self._keep(mean.flatten(), var.flatten(), samples * (slab.shape[3] * self.deal[-1]))
        return _Normalised.apply(slab, self.weight, self.bias, mean, var, self, samples).view(x.shape).to(x.dtype)

    def others(self) -> Across | None:
        """Returns the replicas that the statistics are combined with; None if there is no other replica."""
        return self.across if self.across is not None and self.across.has_others else None

    @torch.no_grad()
    def _keep(self, mean: Tensor, var: Tensor, n: int | Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        assert self.momentum is not None, "of such a layer torch makes no pass on the meta device"
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        others = max(n - 1, 1) if isinstance(n, int) else (n - 1).clamp(min=1)
        self.running_var.lerp_(var * (n / others), self.momentum)


class SlabGroupNorm(nn.Module):
    def __init__(self, layer: nn.GroupNorm, deal: Deal, group: SlabGroup) -> None:
        super().__init__()
        self.deal, self.group, self.eps, self.num_groups = deal, group, layer.eps, layer.num_groups
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        mean, var = statistics(wide.detach(), self.num_groups, self.deal, self.group)
        return _Normalised.apply(wide, self.weight, self.bias, mean, var, self, len(x)).to(x.dtype)


def over_replicas(layers: Mapping[str, BatchNorm], across: Across) -> dict[str, nn.Module]:
    """Returns layers that replace batch norms of whole images, or of no images, on one worker."""
    alone = SlabGroup(0, 1, across.group.collective)
    return {name: SlabBatchNorm(layer, (0, 1), alone, across) for name, layer in layers.items()}


def statistics(x: Tensor, groups: int | None, deal: Deal, group: SlabGroup) -> tuple[Tensor, Tensor]:
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
    """A normalisation that keeps x and the statistics for backward, as torch's own layers do."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        layer: SlabBatchNorm | SlabGroupNorm,
        samples: int | Tensor,
    ) -> Tensor:
        inverse = (var + layer.eps).rsqrt()
        scale = by_channel(inverse, x) if weight is None else by_channel(inverse, x) * weight.view(1, -1, 1, 1)
        shift = -by_channel(mean, x) * scale
        ctx.layer, ctx.samples = layer, samples
        ctx.save_for_backward(x, weight, mean, inverse)
        return torch.addcmul(shift if bias is None else shift + bias.view(1, -1, 1, 1), x, scale)

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        layer, (dy,) = ctx.layer, grad_outputs
        x, weight, mean, inverse = ctx.saved_tensors
        scaled = (x - by_channel(mean, x)) * by_channel(inverse, x)  # x'
        db, dw = dy.sum((2, 3)), (dy * scaled).sum((2, 3))  # [n, c], of this slab
        w = torch.ones_like(db[0]) if weight is None else weight
        if isinstance(layer, SlabBatchNorm):
            sums = layer.group.sum(torch.stack([db.sum(0), dw.sum(0)]), "gradients of statistics")  # [2, c], of all
            db, dw = sums
            if (across := layer.others()) is not None:
                sums = across.sum(sums, len(x), ctx.samples)
            of_g, of_gx = (w * sums).unsqueeze(1)  # [1, c] each
            n = x.numel() // x.shape[1]
        else:
            by_group = [(w * each).view(*mean.shape, -1).sum(2) for each in (db, dw)]  # [n, groups]
            parts = [*by_group, db.sum(0), dw.sum(0)]
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
        return dx if wanted[0] else None, dw if wanted[1] else None, db if wanted[2] else None, None, None, None, None


def by_channel(statistic: Tensor, x: Tensor) -> Tensor:
    """[1, c] or [n, groups] -> [1 or n, c, 1, 1]"""
    return statistic.repeat_interleave(x.shape[1] // statistic.shape[1], dim=1)[:, :, None, None]
