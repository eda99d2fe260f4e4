"""The messages of sockets.py while they leave and arrive."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_ROOM = 1 << 20  # bytes for the beginning of a message that nobody asked for


class UnexpectedError(Exception):
    """A message is of another length, or of another kind, than its receiver takes."""


class PeerGoneError(Exception):
    """The other worker is no longer there. `rank`: in the whole run; None: nobody is there."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(eq=False)
class Send:
    """A message that leaves for `peer`. `rest`: what the kernel has not taken yet; it must not be touched."""

    peer: int
    rest: list[memoryview]
    done: bool = False
    broken: bool = False


@dataclass(eq=False)
class IncomingMessage:
    """A message that arrives."""

    source: int
    arrival: int
    length: int
    kind: bytes
    memory: memoryview  # of what nobody has asked for, no more than twice what has come
    filled: int = 0
    refused: bool = False  # what comes of it is thrown away

    @property
    def whole(self) -> bool:
        return self.filled == self.length

    def room(self) -> memoryview:
        """Returns the memory for its next bytes."""
        if self.refused:
            return memoryview(bytearray(min(self.length - self.filled, FIRST_ROOM)))
        if self.filled == len(self.memory):
            larger = memoryview(bytearray(min(self.length, max(2 * self.filled, FIRST_ROOM))))
            larger[: self.filled] = self.memory
            self.memory = larger
        return self.memory[self.filled :]


@dataclass(eq=False)
class Receive:
    """A wish for the next message in `group` from any of `sources`. `memory` is the wish's own until it is done.

    `memory`: None for a message of any length up to `most` bytes, which then has memory of its own.
    `from_anyone`: a source that has died is told once, and the others are waited for.
    `kind`: what its sender must say of it.
    """

    group: int
    sources: Sequence[int]
    memory: memoryview | None
    from_anyone: bool = False
    most: int = 0
    kind: bytes = b""
    message: IncomingMessage | None = None

    @property
    def done(self) -> bool:
        return self.message is not None and self.message.whole

    @property
    def source(self) -> int:
        assert self.message is not None
        return self.message.source

    @property
    def content(self) -> memoryview:
        """Returns the content, once it is done."""
        assert self.message is not None
        return self.message.memory[: self.message.length]

    @property
    def awaits(self) -> Sequence[int]:
        """Returns the workers whose bytes are still needed."""
        return self.sources if self.message is None else (self.source,)
