"""The byte ledger: payload bytes that left this worker, by primitive.

Only a fabric writes to it, at the one place where bytes leave; strategies and sync modes state their cost in closed
form in their own files, and tests hold the two equal.

A collective's bytes are those that its algorithm sends from one worker. gloo's (and, in bandwidth, nccl's) are, for n
workers and S payload bytes:

    all_reduce      2 (n-1)/n S     ring: reduce-scatter, then all-gather (Patarasuk and Yuan 2009)
    reduce_scatter    (n-1)/n S     S the whole input; every worker sends each other its share, which sums them
    all_gather        (n-1)   S     S one worker's input; ring
    all_to_all        (n-1)/n S     S the whole input
    broadcast       children * S    binomial tree rooted at the source
    send                      S
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache


class Ledger:
    """Bytes and messages of training by primitive, since the worker started; of all groups, and along each axis."""

    def __init__(self, whole: "Ledger | None" = None) -> None:
        """`whole`: that of all groups, where this one is of some."""
        self.bytes: dict[str, int | Fraction] = defaultdict(int)  # exact: a share of a ring may be no whole number
        self.messages: Counter[str] = Counter()
        self.axes: dict[str, Ledger] = {}
        self._whole = whole
        # whether traffic is left out now; on a virtual cluster no time passes for it either
        self.is_aside = False if whole is None else whole.is_aside

    def along(self, axis: str) -> "Ledger":
        """Returns the ledger of the groups along an axis of the mesh; its counts are counted here, too."""
        whole = self if self._whole is None else self._whole
        return whole.axes.setdefault(axis, Ledger(whole))

    def count(self, primitive: str, payload: int | Fraction) -> None:
        """One call of `primitive` sends `payload` bytes from this worker."""
        if not self.is_aside:
            self.bytes[primitive] += payload
            self.messages[primitive] += 1
            if self._whole is not None:
                self._whole.count(primitive, payload)

    def snapshot(self) -> dict[str, int]:
        """Bytes by primitive so far, rounded to whole ones."""
        return {primitive: round(count) for primitive, count in self.bytes.items()}

    def total(self) -> int:
        """Bytes so far; from any thread."""
        return round(sum(list(self.bytes.values())))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leaves out the traffic within: it is not part of training (evaluation, checkpoints, set-up)."""
        with self._put_aside(True):
            yield

    @contextmanager
    def of_training(self) -> Iterator[None]:
        """Counts the traffic within as training's, although it happens aside: somebody waits for a message of
        training.
        """
        with self._put_aside(False):
            yield

    @contextmanager
    def _put_aside(self, aside: bool) -> Iterator[None]:
        before = self.is_aside
        self._set_aside(aside)
        try:
            yield
        finally:
            self._set_aside(before)

    def _set_aside(self, aside: bool) -> None:
        whole = self if self._whole is None else self._whole
        for each in (whole, *whole.axes.values()):
            each.is_aside = aside


def all_reduce_bytes(payload: int, size: int) -> int | Fraction:
    return _ratio(2 * (size - 1) * payload, size)


def reduce_scatter_bytes(payload: int, size: int) -> int | Fraction:
    return _ratio((size - 1) * payload, size)


def all_gather_bytes(payload: int, size: int) -> int:
    return (size - 1) * payload


def all_to_all_bytes(payload: int, size: int) -> int | Fraction:
    return _ratio((size - 1) * payload, size)


def broadcast_bytes(payload: int, size: int, distance: int) -> int:
    """`distance`: this worker's rank counted from the source, modulo `size`.

    In gloo's binomial tree the worker at `distance` d forwards to d + 2^k for every 2^k > d that stays below `size`.
    """
    children = 0
    step = 1
    while step < size:
        if distance < step and distance + step < size:
            children += 1
        step *= 2
    return children * payload


@lru_cache(maxsize=1024)  # a run has few sizes of messages, and a new fraction takes several microseconds
def _ratio(numerator: int, denominator: int) -> int | Fraction:
    whole, rest = divmod(numerator, denominator)
    return Fraction(numerator, denominator) if rest else whole
