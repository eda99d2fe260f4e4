"""The workers that hold the pieces of the same layers, and what they send to one another.

    sum, largest    [...] on each -> the sum (the maximum) on all                                all-reduce
    gather          [n, t / d, ...] on each -> [n, t, ...] on all, in the order of pieces        all-gather
    scatter_sum     [n, t, ...] on each -> the [n, t / d, ...] of the sum that this piece has    reduce-scatter

In autograd's terms a sum's gradient is everyone's, that of what all have alike is a sum, and gather and scatter_sum are
each other's (Korthikanti et al. 2022, figure 5: g and g-bar).
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ...comm import Comm, Work
from ...exchange.collectives import Collective, Fabric
from ...exchange.collectives.base import Phase, added, phase
from ..core.cost import Traffic, World
from .draws import Draws


class Sent(NamedTuple):
    """One sum or gathering, with the bytes of one worker's tensor."""

    what: str  # sum, largest, gather, scatter_sum
    nbytes: int


class TensorGroup:
    """`size` workers. Without `comm`, as a copy is, it is alone: results have their shapes, and `sent` says what was
    asked for. `partial`: names of whole parameters whose gradients are of one slice of the sequence. `knob`: what
    says how many workers it has.
    """

    def __init__(self, size: int, collective: Collective | None = None, knob: str = "strategy.degree") -> None:
        self.size, self.collective, self.knob = size, collective or Fabric(), knob
        self.comm: Comm | None = None
        self.partial: list[str] = []
        self.sent: list[Sent] = []
        self.draws = Draws()

    def __deepcopy__(self, memo: object) -> "TensorGroup":
        alone = TensorGroup(self.size, self.collective, self.knob)
        alone.partial = self.partial
        return alone

    def join(self, part: nn.Module, comm: Comm | None) -> None:
        """Once, by the worker that trains `part`: from here on it talks to the others through `comm`."""
        self.comm = comm
        for name in self.partial:
            part.get_parameter(name).register_hook(self._summed)

    def _summed(self, gradient: Tensor) -> Tensor:
        return self.sum(gradient.contiguous().clone(), "gradients")

    def sum(self, x: Tensor, purpose: str) -> Tensor:
        """`x`, contiguous, is the result's memory."""
        self.begin_sum(x, purpose).wait()
        return x

    def begin_sum(self, x: Tensor, purpose: str) -> Work:
        if self.comm is None:
            return self._alone("sum", x)
        with self.comm.timeline.named(purpose):
            return self.collective.all_reduce(x, self.comm)

    def largest(self, x: Tensor, purpose: str) -> Tensor:
        """`x`, contiguous, is the result's memory."""
        if self.comm is None:
            self._alone("largest", x)
            return x
        with self.comm.timeline.named(purpose):
            self.comm.all_reduce(x, "max").wait()
        return x

    def gather(self, x: Tensor, purpose: str) -> Tensor:
        if self.comm is None:
            self._alone("gather", x)
            return x.repeat(1, self.size, *[1] * (x.dim() - 2))
        with self.comm.timeline.named(purpose):
            return self.comm.all_gather(x).transpose(0, 1).flatten(1, 2)

    def scatter_sum(self, x: Tensor, purpose: str) -> Tensor:
        slices = x.unflatten(1, (self.size, -1))  # [n, d, t / d, ...]
        if self.comm is None:
            self._alone("scatter_sum", x)
            return slices[:, 0].clone()
        with self.comm.timeline.named(purpose):
            return self.comm.reduce_scatter(slices.transpose(0, 1).flatten(0, 1))

    def _alone(self, what: str, x: Tensor) -> Work:
        self.sent.append(Sent(what, x.numel() * x.element_size()))
        return _Done()

    def traffic(self, sent: Sequence[Sent], hosts: tuple[int, ...] | None) -> Traffic:
        """Returns the bytes that each worker sends, by primitive."""
        world, others = World(self.size, hosts=hosts), self.size - 1
        ways = {
            "sum": lambda nbytes: self.collective.traffic(nbytes, world),
            "largest": lambda nbytes: Fabric().traffic(nbytes, world),
            "gather": lambda nbytes: {"all_gather": others * nbytes},
            "scatter_sum": lambda nbytes: {"reduce_scatter": others / self.size * nbytes},
        }
        return added(*(ways[each.what](each.nbytes) for each in sent))

    def phases(self, sent: Sequence[Sent], hosts: tuple[int, ...] | None) -> list[Phase]:
        """Returns the phases of `sent`, one after the other, from which its time follows."""
        world, ring = World(self.size, hosts=hosts), [(i, (i + 1) % self.size) for i in range(self.size)]
        ways = {
            "sum": lambda nbytes: self.collective.phases(nbytes, world),
            "largest": lambda nbytes: Fabric().phases(nbytes, world),
            "gather": lambda nbytes: [phase("gather", nbytes, ring, world, self.size - 1)],
            "scatter_sum": lambda nbytes: [phase("scatter-sum", nbytes / self.size, ring, world, self.size - 1)],
        }
        return [each for once in sent for each in ways[once.what](once.nbytes)]


class _Done(Work):
    def wait(self) -> None:
        pass
