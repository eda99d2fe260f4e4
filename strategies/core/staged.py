"""The interface of a strategy whose replica is a pipeline."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from ...batches import Samples, call
from .strategy import Strategy


class StagedStrategy(Strategy):
    """A strategy that cuts a model into stages, and a batch into micro-batches that are under way at once."""

    @abstractmethod
    def layers(self, part: nn.Module) -> list[list[str]]:
        """Returns the names of a part's layers, in runs that follow one another in the model."""

    @abstractmethod
    def micro_sizes(self, batch_size: int) -> list[int]:
        """Returns the micro-batches, in samples, whose activations a worker may hold at once."""

    @abstractmethod
    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        """Returns the most bytes that a part keeps for backward at any one time.

        Args:
            kept: what each of the part's passes in `profile` keeps beside what those before it keep.
            again: what there is more in the backward pass of each, where something is recomputed.
        """

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        """Returns for each place on an axis the places it sends to; axes on which all send to all are left out."""
        return {}

    def passes(self, inputs: Samples) -> Iterator[Tensor]:
        """Yields the output of each forward pass through `module` of such a batch as `forward_backward` takes."""
        yield call(self.module, inputs)

    def drain(self) -> None:
        """Finishes what steps have left under way: weights are looked at next, or training is over."""


def drain(strategy: Strategy) -> None:
    """Finishes what steps of a pipeline have left under way (`StagedStrategy.drain`)."""
    if isinstance(strategy, StagedStrategy):
        strategy.drain()
