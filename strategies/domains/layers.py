"""Layers that work on a slab [n, channels, rows, width] and give the same rows as the layer that they take the place
of.

They have the parameters of that layer under the same names. Their gradients are sums over pixels: each worker has the
sum over its own, and the sum of these is made before anybody sees it.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.precision import narrowed
from .group import ROWS, Gathered, Returned, SlabGroup, SumOfSlabGradients, assembled, fetch, fetched, like
from .rows import Deal, Halo, Range, Transposed, Window

aten = torch.ops.aten


class SlabConv(nn.Module):
    """A convolution. While the neighbours' rows are under way it computes the rows that need none of them."""

    def __init__(self, layer: nn.Conv2d, halo: Halo, group: SlabGroup) -> None:
        super().__init__()
        self.halo, self.group = halo, group
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.padding = (0, side(layer, 1).padding)  # padding rows are rows like others here

    def forward(self, x: Tensor) -> Tensor:
        return _Convolved.apply(narrowed(x), self.weight, self.bias, self)

    def convolve(self, x: Tensor) -> Tensor:
        weight, bias = (None if each is None else each.to(x.dtype) for each in (self.weight, self.bias))
        assert weight is not None
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def gradients(self, dy: Tensor, x: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Returns the gradients of the input, the weight and the bias; None for each that is not `wanted`."""
        biases = None if self.bias is None else [len(self.bias)]
        arguments = self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        weight = self.weight.detach().to(dy.dtype)
        return list(aten.convolution_backward(dy, x, weight, biases, *arguments, wanted))


class _Convolved(torch.autograd.Function):
    """A convolution with its own backward: autograd would keep a copy of the slab with the neighbours' rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: SlabConv) -> Tensor:
        halo = layer.halo
        moving = fetch(x, halo, layer.group)
        first, end = halo.interior if halo.moves else halo.make
        none = like(x, 0)

        def of(make: Range, above: Tensor, below: Tensor) -> Tensor:
            return layer.convolve(assembled(x, above, below, halo, halo.rule.reads(*make)))

        inner = [of((first, end), none, none)] if first < end else []
        above, below = moving.wait()
        outer = [
            of(make, above, below) if make[0] < make[1] else None
            for make in ((halo.make[0], first), (end, halo.make[1]))
        ]
        ctx.layer = layer
        ctx.save_for_backward(x, weight, above, below)
        pieces = [piece for piece in (outer[0], *inner, outer[1]) if piece is not None]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=ROWS)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The gradients of rows travel while those of the weights are computed."""
        layer, (dy,) = ctx.layer, grad_outputs
        x, _, above, below = ctx.saved_tensors
        rows = assembled(x, above, below, layer.halo, layer.halo.reads)
        returned = None
        if ctx.needs_input_grad[0]:
            dx = layer.gradients(dy, rows, (True, False, False))[0]
            assert dx is not None
            returned = Returned(dx, layer.halo, layer.group)
        _, dw, db = layer.gradients(dy, rows, (False, *ctx.needs_input_grad[1:3]))
        dx = None if returned is None else returned.wait()
        dw, db = (None if each is None else each.to(layer.weight.dtype) for each in (dw, db))
        partial = [each for each in (dw, db) if each is not None]
        if partial:
            total = layer.group.sum(torch.cat([each.flatten() for each in partial]), "gradients of weights")
            whole = iter(total.split([each.numel() for each in partial]))
            dw, db = (None if each is None else next(whole).view_as(each) for each in (dw, db))
        return dx, dw, db, None


class SlabPool(nn.Module):
    """Max or average pooling."""

    def __init__(self, layer: nn.MaxPool2d | nn.AvgPool2d, halo: Halo, group: SlabGroup) -> None:
        super().__init__()
        self.halo, self.group, self.layer = halo, group, layer
        self.sides = [side(layer, dim) for dim in (0, 1)]

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride, dilation = (
            [getattr(each, name) for each in self.sides] for name in ("kernel", "stride", "dilation")
        )
        padding = [0, self.sides[1].padding]
        if isinstance(self.layer, nn.MaxPool2d):
            rows = fetched(x, self.halo, self.group, float("-inf"))
            return F.max_pool2d(rows, kernel, stride, padding, dilation)
        rows, divisor = fetched(x, self.halo, self.group), self.layer.divisor_override
        if self.layer.count_include_pad or divisor is not None:
            return F.avg_pool2d(rows, kernel, stride, padding, divisor_override=divisor)
        first, end = self.halo.reads
        there = rows.new_ones(1, 1, min(end, self.halo.height) - max(first, 0), rows.shape[-1])
        there = F.pad(there, (0, 0, max(-first, 0), max(end - self.halo.height, 0)))
        counts = F.avg_pool2d(there, kernel, stride, padding, divisor_override=1)
        return F.avg_pool2d(rows, kernel, stride, padding, divisor_override=1) / counts


class SlabTransposed(nn.Module):
    """A transposed convolution, which gives rows around its own, too: they are cut off."""

    def __init__(self, layer: nn.ConvTranspose2d, halo: Halo, group: SlabGroup) -> None:
        super().__init__()
        self.halo, self.group = halo, group
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.padding, self.output_padding = side(layer, 0).padding, layer.output_padding
        self.width_padding = side(layer, 1).padding

    def forward(self, x: Tensor) -> Tensor:
        weight = SumOfSlabGradients.apply(self.weight, self.group)
        bias = None if self.bias is None else SumOfSlabGradients.apply(self.bias, self.group)
        rows = fetched(x, self.halo, self.group)
        padding, more = (0, self.width_padding), self.output_padding
        y = F.conv_transpose2d(rows, weight, bias, self.stride, padding, more, self.groups, self.dilation)
        first, end = self.halo.make
        start = first + self.padding - self.halo.reads[0] * self.stride[0]
        return y.narrow(ROWS, start, end - first)


class SlabNearest(nn.Module):
    """Each pixel repeated, down and across."""

    def __init__(self, layer: nn.Upsample, halo: Halo, group: SlabGroup) -> None:
        super().__init__()
        assert isinstance(halo.rule, Transposed)
        self.halo, self.group, self.factor = halo, group, halo.rule.stride
        self.width, self.factors = layer.size, layer.scale_factor

    def forward(self, x: Tensor) -> Tensor:
        rows = fetched(x, self.halo, self.group)
        width = last(self.width) if self.width is not None else int(x.shape[-1] * last(self.factors))
        y = F.interpolate(rows, size=(rows.shape[ROWS] * self.factor, width), mode="nearest")
        first, end = self.halo.make
        start = first - self.halo.reads[0] * self.factor
        return y if start == 0 and y.shape[ROWS] == end - first else y.narrow(ROWS, start, end - first)


class SlabOwn(nn.Module):
    """A layer without parameters that says which rows it reads: `row_window`, its kernel and stride of rows."""

    def __init__(self, layer: nn.Module, halo: Halo, group: SlabGroup) -> None:
        super().__init__()
        self.halo, self.group, self.layer = halo, group, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(fetched(x, self.halo, self.group))


class SlabDropout(nn.Module):
    """Dropout, which draws for the whole image, as one worker would, and drops what it has of it.

    All workers draw the same numbers: each slab by itself would be given the same pattern.
    """

    def __init__(self, layer: nn.Dropout, deal: Deal, group: SlabGroup) -> None:
        super().__init__()
        self.p, self.group = layer.p, group
        self.height, self.rows = deal[-1], (deal[group.place], deal[group.place + 1])

    def forward(self, x: Tensor) -> Tensor:
        first, end = self.rows
        with torch.no_grad():
            whole = F.dropout(like(x, self.height).fill_(1.0), self.p, self.training)
            kept = whole.narrow(ROWS, first, end - first).clone()
        return x * kept


class AfterGathering(nn.Module):
    """A layer that needs the whole image, on the whole image; so do all behind it, alike on all workers."""

    def __init__(self, layer: nn.Module, deal: Deal, group: SlabGroup) -> None:
        super().__init__()
        self.layer, self.deal, self.group = layer, deal, group

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(Gathered.apply(x, self.deal, self.group))


def last(value: Any) -> Any:
    """Returns the last value of a setting that has one value for both sides, or one for each."""
    return value[-1] if isinstance(value, tuple | list) else value


def side(layer: Any, dim: int) -> Window:
    """A convolution's or a pooling's window along rows (0) or columns (1)."""
    kernel, stride, dilation = (_at(getattr(layer, name, 1), dim) for name in ("kernel_size", "stride", "dilation"))
    padding = layer.padding
    if isinstance(padding, str):
        padding = dilation * (kernel - 1) // 2 if padding == "same" else 0
    return Window(kernel, stride, _at(padding, dim), dilation)


def _at(value: int | tuple[int, ...], dim: int) -> int:
    return value if isinstance(value, int) else value[dim]
