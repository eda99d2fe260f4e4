"""A replica's samples of one step, and its forward passes as a plan takes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from ...batches import Samples


@dataclass(frozen=True)
class Batch:
    """One replica's samples of one step. `size` may be 0: the last uneven batch need not reach every replica.

    Where samples are drawn by chance (`expected`), sums over them are divided by how many are expected, and not by how
    many there are: a mean would not be of a fixed number, and a batch without samples counts as any other.
    """

    inputs: Samples  # [size, ...]; several where a model takes several
    targets: Samples  # [size, ...]; with their weights where they have some, for the loss to make of them what it must
    total: int  # samples of this step over all replicas; on average, where they are drawn
    step: int = 0  # of the run, from 0
    of: int | None = None  # samples of the batch that this is a micro-batch of (accumulation.py); None: it is whole
    last: bool = True  # no other micro-batch follows in this step
    expected: float | None = None  # samples of the whole batch on average, where they are drawn; None: those it has

    @cached_property
    def size(self) -> int:
        return len(self.targets)

    @property
    def counted(self) -> float:
        """Returns the divisor of a sum over these samples: their number, or the expected one of this part."""
        if self.expected is None:
            return self.size
        return self.expected * self.size / self.of if self.of else self.expected

    @property
    def share(self) -> float:
        """n_j / sum_j n_j: the weight of this replica's mean gradient in the mean over all samples."""
        if self.expected is not None:
            return self.expected / self.total
        return (self.size if self.of is None else self.of) / self.total


BeforeBackward = Callable[[Sequence[Tensor], bool], None]  # Sync.before_backward


@dataclass(frozen=True)
class Pass:
    """A forward pass of one part, as a plan takes it on the meta device."""

    forward: Callable[[], Tensor]  # returns where backward begins: the loss, or what goes to the next part


class PassTime(NamedTuple):
    """The time of a batch through one part, in seconds or in proportion to them."""

    forward: float
    backward: float
    to_input: float  # of `backward`, what the gradient of the input takes by itself


TimeOf = Callable[[int, Tensor, int], PassTime]  # (part, inputs on the meta device, chunk of the part)


MessageTime = Callable[[int, int, int], float]  # (bytes, from part, to part)
