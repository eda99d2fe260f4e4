"""A rule that makes a shorter message of a vector, and a vector of the message.

A rule is pure: what `encode`, `decode` and `total` give depends on what they are given alone. What one worker remembers
from one message to the next is in the slot of the message's key, which the channel keeps (exchange/channel.py): what
error feedback has left out (feedback.py), the count of messages, and what else a rule wants to find again.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...strategies.core.errors import NotFiniteError
from ...strategies.core.terms import (
    ADDABLE,
    ADDED_UP,
    FOR_CHANGES,
    LOSSLESS,
    MESSAGE_BY_ENTRY,
    MESSAGE_LENGTH,
    RESETTABLE,
    UNCOMPRESSED,
    UNINFORMED,
    WHOLE_TENSORS,
    Compatible,
    Need,
    Term,
    absent,
    required,
)
from ..seeded import generator
from .feedback import Feedback


class UnreadableError(ValueError):
    """A message is none that this rule makes."""


@dataclass(frozen=True)
class Vector:
    """The layout of a vector, [n]: parameters of these shapes, one after another."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @cached_property
    def sizes(self) -> list[int]:
        """Entries of each parameter."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @cached_property
    def n(self) -> int:
        return sum(self.sizes)

    @property
    def nbytes(self) -> int:
        return self.n * self.dtype.itemsize

    def pieces(self, x: Tensor) -> list[Tensor]:
        """[n] -> its parameters, in their shapes: views."""
        return [piece.view(shape) for piece, shape in zip(x.split(self.sizes), self.shapes, strict=True)]


def vector_of(tensors: Iterable[Tensor]) -> Vector:
    """Returns the layout of the vector of these parameters, or gradients, all of one dtype."""
    tensors = list(tensors)
    return Vector(tuple(tuple(tensor.shape) for tensor in tensors), tensors[0].dtype)


class Slot:
    """The state that one worker keeps for the messages of one key.

    `count`: the messages before this one. `memory`: tensors that stay from one message to the next, and are saved with
    the run. `rank`, `workers`: of the group.
    """

    def __init__(self, key: str, vector: Vector, rank: int, workers: int) -> None:
        self.key, self.vector, self.rank, self.workers = key, vector, rank, workers
        self.count = 0
        self.memory: dict[str, Tensor] = {}

    def draws(self, seed: int, common: bool = False) -> torch.Generator:
        """The randomness of this message, on the CPU; `common`: the same on all workers of the group."""
        return generator(seed, self.key, self.count, "all" if common else self.rank)


@dataclass(frozen=True)
class CompressorTraits:
    """The declaration of a compressor. A constructor may change it by the knobs.

    Passes are over the vector, and give the time on a modelled worker; the message comes once on top. Where a class
    says "as long as these took", they are the time on one core, of 25 MiB, over that of one pass at 10 GB a second.
    """

    plain: bool = False  # vectors are sent as they are
    lossless: bool = False  # what is decoded is what was encoded
    unbiased: bool = False  # the mean of what is decoded, over the random draws, is what was encoded
    sparse: bool = False  # most entries of what is decoded are 0
    entrywise: bool = True  # what is decoded for an entry depends on that entry alone, whatever vector it is part of
    of_gradients: bool = False  # it makes no sense for differences of weights
    resizes: str = ""  # how it changes the length of gradients, whatever they are
    of_kept: bool = False  # it sends what pruning has kept alone (`Channel.keep`)
    steady: bool = True  # messages of a vector always have `nbytes` bytes
    encode_passes: float = 1.0  # how often the vector is read or written to encode it
    decode_passes: float = 1.0  # how often to decode it


class Compressor(Compatible, ABC):
    """A rule for messages that travel in place of vectors.

    `feedback`: what is done about what messages leave out; None for nothing. `keeps`: slots have tensors in them that
    are a worker's own. `unpredicted`: why the time that messages take is not modelled; "" if it is.
    """

    traits = CompressorTraits()
    feedback: Feedback | None = None
    unpredicted: Note | str = ""

    @property
    def lacks(self) -> Mapping[Term, str]:
        traits = self.traits
        lacking = absent(
            (UNCOMPRESSED, traits.plain),
            (LOSSLESS, traits.lossless),
            (ADDABLE, isinstance(self, Summed)),
            (MESSAGE_BY_ENTRY, traits.entrywise),
            (FOR_CHANGES, not traits.of_gradients),
        )
        return lacking | ({MESSAGE_LENGTH: traits.resizes} if traits.resizes else {})

    @property
    def needs(self) -> tuple[Need, ...]:
        pruned = "leaves out what adapt=pruned has taken out"
        return required(
            (Need(RESETTABLE, pruned), self.traits.of_kept),
            (Need(WHOLE_TENSORS, pruned), self.traits.of_kept),
            (Need(ADDED_UP, pruned), self.traits.of_kept),
            (Need(UNINFORMED, pruned), self.traits.of_kept),
        )

    @property
    def stands_alone(self) -> bool:
        return not self.traits.of_kept

    @property
    def keeps(self) -> bool:
        return self.feedback is not None

    def check(self, vector: Vector) -> None:
        """Refuse vectors that this rule cannot make messages of. Raises `ConfigError`."""
        if not vector.dtype.is_floating_point:
            raise ConfigError(
                f"model: a parameter is {vector.dtype}, and replicas sum gradients of real numbers. Keep real and "
                "imaginary parts as one more dimension (torch.view_as_complex)"
            )

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        """Refuses settings without any use in the model. `parts`: the trained tensors of each part of a replica.

        Raises `ConfigError`.
        """

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that does not go with gradients of this rule. Raises `ConfigError`."""

    @abstractmethod
    def encode(self, x: Tensor, slot: Slot) -> Tensor:
        """[n] -> [m], on the device of `x`: uint8, but for rules that are `Summed`, whose messages have any dtype."""

    @abstractmethod
    def decode(self, message: Tensor, vector: Vector) -> Tensor:
        """[m], as `encode` made it or its bytes -> [n], on the device of the message. Raises `UnreadableError`."""

    @abstractmethod
    def nbytes(self, vector: Vector) -> int:
        """Bytes of a message; where messages vary, the most that one can have."""

    def mean_nbytes(self, vector: Vector, messages: int | None) -> float:
        """Bytes of a message, the mean over the first so many of a run; None: of those that come in the long run."""
        return self.nbytes(vector)

    def varies(self, messages: int | None) -> Note | str:
        """Returns why the size of so many messages cannot be known beforehand; "" where `mean_nbytes` gives it."""
        return ""

    def notes(self, vector: Vector) -> Sequence[Note | str]:
        """Returns surprising effects of these settings on this vector, a sentence each; none of them is an error."""
        return []

    def held(self, vector: Vector) -> int:
        """Stated bytes that a slot holds once it is used."""
        return self.remembered(vector) + (0 if self.feedback is None else self.feedback.held(vector.nbytes))

    def remembered(self, vector: Vector) -> int:
        """Returns the part of the bytes of `held` that is the rule's own, with or without feedback."""
        return 0

    def encoding(self, vector: Vector) -> float:
        """Bytes of memory that a worker goes through to encode, without feedback."""
        return self.traits.encode_passes * vector.nbytes + self.nbytes(vector)

    def decoding(self, vector: Vector) -> float:
        """Bytes of memory that a worker goes through to decode."""
        return self.traits.decode_passes * vector.nbytes + self.nbytes(vector)

    def finish(self, total: Tensor, vector: Vector) -> Tensor:
        """Returns the vector to step with, made of the sum of the decoded messages, which it may overwrite."""
        return total


Totalling = Generator[Tensor, None, None]


class Summed(Compressor):
    """A rule that workers follow together by sums alone, so that a collective can add up their messages.

    Its feedback, if any, is `ErrorFeedback`.
    """

    @abstractmethod
    def total(self, x: Tensor, out: Tensor, slot: Slot) -> Totalling:
        """Sums the decoded vectors, [n], of all workers into `out`, [n], the same on all.

        Yields one tensor after the other that is to be summed over the workers, in place, and goes on when it is. Where
        `out` is another tensor than `x`, `x` becomes what is left of it without this worker's part of the sum.
        """

    def of_total(self, vector: Vector) -> list[int]:
        """Bytes of each tensor that `total` yields."""
        return [self.nbytes(vector)]


def all_finite(x: Tensor) -> bool:
    """One fast pass where they are: of finite numbers the sum is, unless they are huge."""
    return bool(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).isfinite()) or bool(x.isfinite().all())


def not_finite(x: Tensor, slot: Slot) -> NotFiniteError:
    """Returns the error for a vector that cannot be compressed: rules that mix entries would spread NaN and inf."""
    nans, infinite = int(x.isnan().sum()), int(x.isinf().sum())
    return NotFiniteError(
        f"worker {slot.rank} diverged: of the {len(x):,} numbers that it is to compress for message {slot.count}, "
        f"{nans:,} are NaN and {infinite:,} infinite; a smaller optimizer.lr may help"
    )


def check_finite(x: Tensor, slot: Slot) -> None:
    """Checks that x has no NaN and no infinity. Raises `NotFiniteError`."""
    if not all_finite(x):
        raise not_finite(x, slot)


def check_read(numbers: Tensor) -> None:
    """Checks that the numbers of a message are finite. Raises `UnreadableError`.

    A rule that checks for NaN and infinity before it sends makes no other messages.
    """
    if not all_finite(numbers):
        raise UnreadableError("one of its numbers is NaN or infinite")


def check_length(message: Tensor, expected: int) -> None:
    """Checks the bytes of a message. Raises `UnreadableError`."""
    if message.nbytes != expected:
        raise UnreadableError(f"{message.nbytes} bytes where {expected} were expected")
