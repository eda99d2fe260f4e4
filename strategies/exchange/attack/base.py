"""What a worker that lies sends in place of its gradient, or of its weights' way since all had the same.

The other workers, and the servers, tell the truth. Training data, losses and samples are not lied about.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from ...errors import LayoutError


class Attack(ABC):
    """`colludes`: who lies knows what the honest ones send, so that its row is made where all rows meet."""

    colludes: bool = False

    def __init__(self, workers: int | Sequence[int] = 1) -> None:
        """`workers`: who lies; a number means so many of the last replicas, a list names them. Raises `LayoutError`."""
        self.workers = workers if isinstance(workers, int) else sorted(set(workers))
        if (self.workers < 0) if isinstance(self.workers, int) else any(worker < 0 for worker in self.workers):
            raise LayoutError(f"attack.workers={workers}: must be at least 0, or a list of replicas from 0 on")

    def liars(self, replicas: int) -> frozenset[int]:
        if isinstance(self.workers, int):
            return frozenset(range(max(replicas - self.workers, 0), replicas))
        return frozenset(self.workers)

    def check(self, replicas: int) -> None:
        """Raises `LayoutError` where there are fewer replicas than are to lie."""
        too_many = (
            self.workers > replicas if isinstance(self.workers, int) else max(self.workers, default=0) >= replicas
        )
        if too_many:
            raise LayoutError(
                f"attack.workers={self.workers}: there are {replicas} replicas"
                + ("" if isinstance(self.workers, int) else f", 0 to {replicas - 1}")
                + "; choose fewer, or more hardware.workers"
            )

    @abstractmethod
    def forge(self, own: Tensor, honest: Tensor | None) -> Tensor:
        """[d], what the worker should send -> [d], what it sends.

        `honest`: [m, d], the rows of those who do not lie, if it `colludes`.
        """
