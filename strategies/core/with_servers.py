"""The interface of a sync mode with servers."""

from abc import abstractmethod
from collections.abc import Sequence
from math import inf

from torch import Tensor

from .cost import Memory, World
from .sync import Sync


class SyncWithServers(Sync):
    """A sync mode whose `servers`, for each part of the model, answer the workers."""

    took_step: bool = True  # the last step's samples trained the model; False where its gradient came too late
    made_at: float = -inf  # on the fabric's clock. On a server, when it last changed the weights. On replica 0, when
    # the weights that `consensus` was sent were made, if that may be later than replica 0's own clock

    @abstractmethod
    def serve(self) -> None:
        """Runs a server for its whole life."""

    def next_step(self, step: int) -> int:
        """Returns the worker's next step: `step`, or a later one where it takes no part in those between."""
        return step

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """Returns the stated peak bytes by kind of the server that holds most.

        `held`: what a whole part with these parameters takes, with an optimizer's state for all of them, and a buffer
        of their size.
        """
        return held


def next_step(sync: Sync, step: int) -> int:
    """Returns a worker's next step in any sync mode: `step`, or a later one (`SyncWithServers.next_step`)."""
    return sync.next_step(step) if isinstance(sync, SyncWithServers) else step
