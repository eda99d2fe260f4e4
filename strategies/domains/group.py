"""The workers of a replica, each with a slab, and what they exchange; or those of several replicas (replicas.py)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...comm import Comm, Work
from ...comm.ledger import all_gather_bytes
from ...exchange.collectives import Collective
from ...exchange.collectives.base import added
from ..core.cost import Traffic, World
from .rows import Deal, Halo, Range

ROWS = 2  # the dimension of rows in [n, channels, height, width]


class SlabGroup:
    """Worker `place` of `degree`. Without `comm`, as a copy is, it is alone, and counts what it would send."""

    def __init__(self, place: int, degree: int, collective: Collective) -> None:
        self.place, self.degree, self.collective = place, degree, collective
        self.comm: Comm | None = None
        self.hosts: tuple[int, ...] | None = None
        self.sent: list[Traffic] = []

    def __deepcopy__(self, memo: object) -> "SlabGroup":
        return SlabGroup(self.place, self.degree, self.collective)

    def sum(self, x: Tensor, purpose: str) -> Tensor:
        """[...] on each -> their sum, on all alike; `x` is the result's memory."""
        if self.degree == 1:
            return x
        if self.comm is None:
            size = x.numel() * x.element_size()
            self.sent.append(self.collective.traffic(size, World(self.degree, hosts=self.hosts)))
            return x
        with self.comm.timeline.named(purpose):
            self.collective.all_reduce(x, self.comm).wait()
        return x

    def gather(self, x: Tensor, purpose: str) -> Tensor:
        """[...] on each, of one shape -> [degree, ...] on all."""
        if self.degree == 1:
            return x.unsqueeze(0)
        if self.comm is None:
            nbytes = all_gather_bytes(x.numel() * x.element_size(), self.degree)
            self.sent.append({"all_gather": float(nbytes)})
            return x.new_zeros(self.degree, *x.shape)
        with self.comm.timeline.named(purpose):
            return self.comm.all_gather(x.contiguous())

    def swap(self, up: Tensor, down: Tensor, from_above: Tensor, from_below: Tensor, purpose: str) -> "Moving":
        """Begin to send `up` and `down` to the neighbours, and to fill the other two; what is empty is not sent."""
        if self.comm is None:
            self.sent.append({"send": float(sum(x.numel() * x.element_size() for x in (up, down)))})
            return Moving((), from_above.zero_(), from_below.zero_())
        comm, above, below = self.comm, self.place - 1, self.place + 1
        with comm.timeline.named(purpose):
            works = [comm.irecv(x, src) for x, src in ((from_above, above), (from_below, below)) if x.numel()]
            works += [comm.isend(x, dst) for x, dst in ((up, above), (down, below)) if x.numel()]
        return Moving(works, from_above, from_below)

    def traffic(self) -> Traffic:
        """Returns the bytes counted since the last call, and clears the count."""
        total = added(*self.sent)
        self.sent.clear()
        return {primitive: nbytes for primitive, nbytes in total.items() if nbytes}


class Moving:
    """Rows under way."""

    def __init__(self, works: Sequence[Work], above: Tensor, below: Tensor) -> None:
        self._works, self._above, self._below = works, above, below

    def wait(self) -> tuple[Tensor, Tensor]:
        """Waits for the rows, and returns those of the worker above and those of the worker below."""
        for work in self._works:
            work.wait()
        return self._above, self._below


def like(x: Tensor, rows: int) -> Tensor:
    """Returns an uninitialised tensor like `x`, with `rows` rows."""
    return x.new_empty(*x.shape[:ROWS], rows, *x.shape[ROWS + 1 :])


def own(x: Tensor, halo: Halo, rows: Range) -> Tensor:
    """Some of a worker's own rows of the input, as they are in the whole image."""
    return x.narrow(ROWS, max(rows[0] - halo.have[0], 0), rows[1] - rows[0]) if rows[1] > rows[0] else like(x, 0)


def fetch(x: Tensor, halo: Halo, group: SlabGroup) -> Moving:
    """Begin to exchange the rows that are read at a layer."""
    return group.swap(
        own(x, halo, halo.to_above).contiguous(),
        own(x, halo, halo.to_below).contiguous(),
        like(x, halo.above[1] - halo.above[0]),
        like(x, halo.below[1] - halo.below[0]),
        "rows of activations",
    )


def assembled(x: Tensor, above: Tensor, below: Tensor, halo: Halo, rows: Range, fill: float = 0.0) -> Tensor:
    """`rows` of the whole input, of a worker's own and those that it was sent; `fill` is what padding has."""
    pieces: list[Tensor] = []
    for start, content in ((halo.above[0], above), (halo.have[0], x), (halo.below[0], below)):
        first, end = max(rows[0], start), min(rows[1], start + content.shape[ROWS])
        if first < end:
            pieces.append(content.narrow(ROWS, first - start, end - first))
    if rows[0] < 0:
        pieces.insert(0, like(x, -rows[0]).fill_(fill))
    if rows[1] > halo.height:
        pieces.append(like(x, rows[1] - halo.height).fill_(fill))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=ROWS)


class Returned:
    """The gradient of a worker's own rows, of which a part is still under way: from the neighbours that read them."""

    def __init__(self, gradient: Tensor, halo: Halo, group: SlabGroup) -> None:
        """`gradient`: of the rows that a worker read, its own and others', which it sends back."""
        first = halo.reads[0]

        def of(rows: Range) -> Tensor:
            low, high = max(rows[0], first), min(rows[1], first + gradient.shape[ROWS])
            return gradient.narrow(ROWS, low - first, high - low) if low < high else like(gradient, 0)

        self._moving = group.swap(
            of(halo.above).contiguous(),
            of(halo.below).contiguous(),
            like(gradient, halo.to_above[1] - halo.to_above[0]),
            like(gradient, halo.to_below[1] - halo.to_below[0]),
            "gradients of rows",
        )
        self._gradient, self._halo = of(halo.have), halo
        if halo.moves or not halo.is_whole:
            read, first = self._gradient, max(first - halo.have[0], 0)
            self._gradient = like(
                gradient, halo.have[1] - halo.have[0]
            ).zero_()  # it may have rows that it does not read
            self._gradient.narrow(ROWS, first, read.shape[ROWS]).copy_(read)

    def wait(self) -> Tensor:
        for rows, received in zip((self._halo.to_above, self._halo.to_below), self._moving.wait(), strict=True):
            if received.numel():
                own(self._gradient, self._halo, rows).add_(received)
        return self._gradient


class Fetched(torch.autograd.Function):
    """The rows that a layer reads, of those that workers have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Halo, group: SlabGroup, fill: float) -> Tensor:
        ctx.halo, ctx.group = halo, group
        above, below = fetch(x, halo, group).wait()
        rows = assembled(x, above, below, halo, halo.reads, fill)
        return rows.clone() if rows.data_ptr() == x.data_ptr() else rows

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        return Returned(grad_outputs[0], ctx.halo, ctx.group).wait(), None, None, None


def fetched(x: Tensor, halo: Halo, group: SlabGroup, fill: float = 0.0) -> Tensor:
    return x if halo.is_whole and not halo.moves else Fetched.apply(x, halo, group, fill)


class SumOfSlabGradients(torch.autograd.Function):
    """The identity of a weight, whose gradient is a partial sum: of the pixels of one slab."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, group: SlabGroup) -> Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (gradient,) = grad_outputs
        return ctx.group.sum(gradient.clone(memory_format=torch.contiguous_format), "gradients of weights"), None


class Gathered(torch.autograd.Function):
    """Slabs -> the whole, alike on all, which all go on with alike: the gradient of each is that of its own rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, deal: Deal, group: SlabGroup) -> Tensor:
        ctx.rows = deal[group.place], deal[group.place + 1]
        heights = [end - first for first, end in pairwise(deal)]
        sent = x
        if x.shape[ROWS] < max(heights):  # a gather is of tensors of one size
            sent = torch.cat([x, like(x, max(heights) - x.shape[ROWS]).zero_()], dim=ROWS)
        slabs = group.gather(sent, "feature maps")
        return torch.cat([slab.narrow(ROWS, 0, rows) for slab, rows in zip(slabs, heights, strict=True)], dim=ROWS)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        first, end = ctx.rows
        return grad_outputs[0].narrow(ROWS, first, end - first).contiguous(), None, None
