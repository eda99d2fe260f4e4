"""One transfer of a training step: the bytes that leave a worker, and the operation that moves them.

A list of transfers is the one statement of what a step exchanges. Bytes by primitive follow from it
(strategies/core/cost.py), and so does the time on a machine that was measured (worker.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from .kernels import Kernel

Kernels = tuple[Kernel, ...]
Operation = Literal[
    "all_reduce", "gloo", "send", "all_gather", "reduce_scatter", "broadcast"
]  # a calibration times them


@dataclass(frozen=True)
class Transfer:
    """Bytes that each worker of a group sends by one operation, in steps `first`, `first + every`, ...

    Args:
        operation: the operation whose measured time it takes.
        workers: workers in the group. A transfer among one worker takes no time.
        nbytes: bytes that leave a worker each time, the mean over the group, as the ledger counts them.
        times: how often it happens in each of these steps, on average over the run.
        every: steps from one such step to the next.
        first: the first such step, counted from 1; None stands for `every`.
        with_samples: only steps in which the worker has samples count.
        primitive: the ledger counts the bytes under this name; "" stands for `operation`.
        from_server: the servers send the bytes, all of them together so many to each worker.
        messages: (bytes, count) of the calls that the slowest worker makes one after another each time. () stands for
            one call with `nbytes`.
        timed: False for bytes that travel with another transfer and take no time of their own.
        kernels: operators that a worker calls each time, such as copies into a buffer and out of it.
        rehearse: makes data up and returns a call whose operators a worker calls, too, each time.
    """

    operation: Operation
    workers: int
    nbytes: float
    times: float = 1.0
    every: int = 1
    first: int | None = None
    with_samples: bool = False
    primitive: str = ""
    from_server: bool = False
    messages: tuple[tuple[float, float], ...] = ()
    timed: bool = True
    kernels: Kernels = ()
    profile: Callable[[], Callable[[], object]] | None = None

    @property
    def counted_as(self) -> str:
        """Returns the primitive under which the ledger counts it."""
        return self.primitive or self.operation

    @property
    def is_counted(self) -> bool:
        """Returns False for calls that the ledger does not see."""
        return self.nbytes > 0 or self.workers == 1 or not any(nbytes for nbytes, _ in self.messages)

    @property
    def takes_time(self) -> bool:
        return self.timed and self.workers > 1

    def calls(self) -> Iterator[tuple[float, float]]:
        """Yields (bytes, mean occurrences per step) of the calls of the slowest worker, in a run without end."""
        for nbytes, count in self.messages or ((self.nbytes, 1.0),):
            yield nbytes, self.times * count / self.every


def passes(operator: str, entries: int, count: int = 1) -> Kernels:
    """Returns `count` calls of an operator that goes through so many entries."""
    return (Kernel(operator, (float(max(entries, 1)),)),) * count
