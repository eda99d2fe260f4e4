"""Checks of a compressor: its messages, its declared traits, its error feedback and what it says of its size."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conf.errors import ConfigError
from ..exchange.channel import Channel
from ..exchange.compress import Compressor, Slot, Summed, UnreadableError, Vector
from ..exchange.compress.feedback import ErrorFeedback
from ..strategies.core.state import from_bytes, to_bytes
from .checks import InvariantCheck, Suite, known_terms, name_of, require, require_equal, run_all
from .messages import LoneWorker, totalled

COMPRESSORS: Suite["TriedCompressor"] = Suite()
SHAPES = ((13, 17), (13,), (3, 4, 2), (5,))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
MESSAGES = 6  # of a key, one after another
DRAWS = 400
TOLD = 16.0  # times the squared error of a mean of so many draws: chi squared of one degree exceeds it with P = 6e-5


@dataclass(frozen=True)
class TriedCompressor:
    """A compressor that is to be tried.

    Args:
        make: builds a new one.
        shapes: of the parameters in its vectors.
    """

    make: Callable[[], Compressor]
    shapes: tuple[tuple[int, ...], ...] = SHAPES

    @property
    def traits(self) -> Any:
        return self.make().traits

    def vectors(self) -> Iterator[Vector]:
        """Yields a vector of each dtype that it accepts."""
        for dtype in DTYPES:
            vector = Vector(self.shapes, dtype)
            try:
                self.make().check(vector)
            except ConfigError:
                continue
            yield vector

    def trips(self) -> Iterator[tuple[Vector, Tensor, Tensor]]:
        """Yields vectors of each dtype, normal and of zeros, each with its decoded message."""
        for vector in self.vectors():
            for x in (normal(vector), torch.zeros(vector.n, dtype=vector.dtype)):
                yield vector, x, round_trip(self.make(), x, vector)


def normal(vector: Vector, seed: int = 0) -> Tensor:
    """[n], normally distributed."""
    return torch.randn(vector.n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(vector.dtype)


def as_bytes(message: Tensor) -> Tensor:
    return message.contiguous().view(torch.uint8)


def round_trip(compress: Compressor, x: Tensor, vector: Vector, count: int = 0) -> Tensor:
    """[n] -> [n], decoded from the bytes of the message after `count` others."""
    slot = Slot("x", vector, 0, 1)
    slot.count = count
    return compress.decode(as_bytes(compress.encode(x.clone(), slot)), vector)


def channel_of(compress: Compressor, vector: Vector) -> Channel:
    return Channel(compress, LoneWorker(), {"x": vector})  # pyright: ignore[reportArgumentType]


def is_whole(tried: TriedCompressor) -> bool:
    """Returns whether messages stand for a whole vector, and not for entries that pruning has kept."""
    return not tried.traits.of_kept


@COMPRESSORS.invariant("strategies/core/terms.py")
def terms_are_known(tried: TriedCompressor) -> None:
    """`lacks` has terms of the group itself, and `needs` terms of other groups, all of the vocabulary."""
    known_terms(tried.make(), "compress")


@COMPRESSORS.invariant("Compressor.nbytes, Compressor.mean_nbytes, CompressorTraits.steady")
def messages_have_the_stated_bytes(tried: TriedCompressor) -> None:
    """A message has `nbytes` bytes, or at most so many if not steady. Its mean is `mean_nbytes`, if that is known."""
    for vector in tried.vectors():
        compress, slot = tried.make(), Slot("x", vector, 0, 1)
        lengths = list[int]()
        for count in range(MESSAGES):
            slot.count = count
            message = compress.encode(normal(vector, count), slot)
            if not isinstance(compress, Summed):
                require_equal(message.dtype, torch.uint8, "dtype of a message")
            lengths.append(message.nbytes)
        stated, told = compress.nbytes(vector), f"of {vector.n} entries of {vector.dtype}"
        if compress.traits.steady:
            require_equal(set(lengths), {stated}, f"bytes of a message {told}")
        require(max(lengths) <= stated, f"at most {stated} bytes {told}", f"{max(lengths)} bytes")
        if not compress.varies(MESSAGES) and is_whole(tried):
            mean = compress.mean_nbytes(vector, MESSAGES)
            require_equal(sum(lengths), round(mean * MESSAGES), f"bytes of {MESSAGES} messages {told}")


@COMPRESSORS.invariant("Compressor.decode; a norm of 0 must not be divided by (Alistarh et al. 2017)")
def decoded_vectors_are_finite_and_of_the_same_form(tried: TriedCompressor) -> None:
    """A decoded vector has the length and the dtype of the encoded one, and is finite, also for zeros."""
    for vector, _, made in tried.trips():
        require_equal((tuple(made.shape), made.dtype), ((vector.n,), vector.dtype), "shape and dtype")
        require(bool(made.isfinite().all()), "finite numbers", f"{int((~made.isfinite()).sum())} that are not")


@COMPRESSORS.invariant("Channel.encode", is_whole)
def encoding_leaves_the_vector_alone(tried: TriedCompressor) -> None:
    """`encode` does not change the vector that it is given: error feedback subtracts the message from it."""
    for vector in tried.vectors():
        x = normal(vector)
        kept = x.clone()
        tried.make().encode(x, Slot("x", vector, 0, 1))
        require(torch.equal(x, kept), "the vector as it was", f"{int((x != kept).sum())} other entries")


@COMPRESSORS.invariant("exchange/compress/base.py: a rule is pure")
def a_message_follows_from_its_slot(tried: TriedCompressor) -> None:
    """Two objects make the same message of the same vector and slot. Random numbers come from `slot.draws`."""
    for vector in tried.vectors():
        used, fresh = tried.make(), tried.make()
        used.encode(normal(vector, 1), Slot("other", vector, 0, 1))
        one, other = (as_bytes(each.encode(normal(vector), Slot("x", vector, 0, 1))) for each in (used, fresh))
        require(torch.equal(one, other), "the message of a new object", "another one of an object that was used before")


@COMPRESSORS.invariant("CompressorTraits.lossless", lambda tried: tried.traits.lossless)
def nothing_is_lost(tried: TriedCompressor) -> None:
    """The decoded vector is the encoded one, bit for bit."""
    for _, x, made in tried.trips():
        require(torch.equal(x, made), "each entry as it was", f"{int((x != made).sum())} other entries")


@COMPRESSORS.invariant("CompressorTraits.sparse", lambda tried: tried.traits.sparse and tried.traits.steady)
def most_entries_are_zero(tried: TriedCompressor) -> None:
    """Half of the decoded entries or more are 0."""
    for vector, _, made in tried.trips():
        most, found = vector.n // 2, int(made.count_nonzero())
        require(found <= most, f"at most {most} entries that are not 0", found)


@COMPRESSORS.invariant("CompressorTraits.entrywise", lambda tried: tried.traits.entrywise and is_whole(tried))
def entries_are_treated_by_themselves(tried: TriedCompressor) -> None:
    """The decoded value of an entry is the same, whatever vector the entry is part of."""
    for vector in tried.vectors():
        longer = prime_below(vector.n)
        for n in (longer, prime_below(longer)):  # no length of a block divides both
            short, x = Vector(((n,),), vector.dtype), normal(vector)
            x[n:] = 64 + x[n:].abs()  # they would change a scale of entries before them
            alone, among = round_trip(tried.make(), x[:n], short), round_trip(tried.make(), x, vector)[:n]
            require(
                torch.equal(alone, among), "the entries of a shorter vector", f"{int((alone != among).sum())} others"
            )


def prime_below(n: int) -> int:
    """Returns the largest prime below `n`, or 1."""
    return next((p for p in range(n - 1, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1))), 1)


@COMPRESSORS.invariant(
    "CompressorTraits.unbiased; Alistarh et al. 2017 (QSGD, arXiv 1610.02132), Lemma 3.1",
    lambda tried: tried.traits.unbiased,
)
def the_mean_of_many_messages_is_the_vector(tried: TriedCompressor) -> None:
    """The expectation of a decoded message is the vector, as far as the mean of 400 messages shows."""
    vector = Vector(((6, 8), (12,)), torch.float32)
    compress, x = tried.make(), normal(vector)
    made = torch.stack([round_trip(compress, x, vector, count) for count in range(DRAWS)]).double()
    of_mean, of_one = float((made.mean(0) - x).square().sum()), float((made - x).square().sum(1).mean())
    scale = float((made.mean(0) @ x.double()) / x.double().square().sum())
    most = TOLD * of_one / DRAWS + 1e-12 * float(x.square().sum())
    told = f"{of_mean:.3g}; along the vector the mean is {scale:.3g} times its length"
    require(of_mean <= most, f"|mean of {DRAWS} messages - x|^2 of at most {most:.3g}", told)


@COMPRESSORS.invariant(
    "Seide et al. 2014; Stich et al. 2018 (arXiv 1809.07599), Algorithm 1: p = b e + x, e <- p - C(p)",
    lambda tried: isinstance(tried.make().feedback, ErrorFeedback),
)
def the_next_message_makes_up_for_what_was_left_out(tried: TriedCompressor) -> None:
    """A message is that of p = b e + x, where e is all that the messages before left out."""
    for vector in tried.vectors():
        compress, rule = tried.make(), tried.make()
        assert isinstance(compress.feedback, ErrorFeedback)
        channel, slot = channel_of(compress, vector), Slot("x", vector, 0, 1)
        e = torch.zeros(vector.n, dtype=vector.dtype)
        for count in range(MESSAGES):
            x = normal(vector, count)
            p = e.mul(compress.feedback.decay).add_(x) if compress.feedback.decay != 1 else e + x
            slot.count = count
            expected = as_bytes(rule.encode(p.clone(), slot))
            sent = as_bytes(channel.encode("x", x))
            told = f"message {count} of a vector of {vector.dtype}"
            require(torch.equal(sent, expected), f"{told}: that of x and the error before", f"{told}: another message")
            e = p - compress.decode(sent, vector)


@COMPRESSORS.invariant("Summed.total", lambda tried: isinstance(tried.make(), Summed))
def all_workers_have_the_same_sum(tried: TriedCompressor) -> None:
    """`total` gives the same sum to all workers. One worker's sum and what is left of its row are the row."""
    for vector in tried.vectors():
        for workers in (1, 3):
            compress = tried.make()
            assert isinstance(compress, Summed)
            slots = [Slot("x", vector, rank, workers) for rank in range(workers)]
            rows = [normal(vector, rank) for rank in range(workers)]
            made = totalled(compress, rows, slots)
            for rank, (out, left) in enumerate(made):
                require(torch.equal(out, made[0][0]), "the sum of worker 0", f"another sum on worker {rank}")
                if workers == 1 and compress.feedback is not None:
                    off = float((out + left - rows[0]).abs().max())
                    require(off <= 16 * torch.finfo(vector.dtype).eps, "sum + left = row", f"{off:.3g} off")


@COMPRESSORS.invariant("Compressor.held", is_whole)
def a_slot_holds_the_stated_bytes(tried: TriedCompressor) -> None:
    """The tensors of a slot have as many bytes as `held` states, once it is used."""
    for vector in tried.vectors():
        compress = tried.make()
        channel = channel_of(compress, vector)
        send(channel, normal(vector))
        held = sum(tensor.nbytes for tensor in channel.buffers())
        require_equal(held, compress.held(vector), f"bytes held for {vector.n} entries of {vector.dtype}")


def send(channel: Channel, x: Tensor) -> Tensor:
    """Sends a vector from a lone worker. Returns its message, or the sum that a `Summed` rule makes of it."""
    if isinstance(channel.compress, Summed):
        total = x.clone()
        channel.all_reduce("x", total).wait()
        return as_bytes(total)
    return as_bytes(channel.encode("x", x))


@COMPRESSORS.invariant("Channel.state_dict; docs/decisions/0004-resume-bit-for-bit.md", is_whole)
def a_saved_slot_is_all_that_it_remembers(tried: TriedCompressor) -> None:
    """A new object with the saved slots goes on with the same messages. It remembers nothing beside its slot."""
    for vector in tried.vectors():
        one, other = channel_of(tried.make(), vector), channel_of(tried.make(), vector)
        for count in range(MESSAGES):
            if count == MESSAGES // 2:
                other.load_state_dict(from_bytes(to_bytes(one.state_dict())))
            sent = send(one, normal(vector, count))
            if count >= MESSAGES // 2:
                resumed = send(other, normal(vector, count))
                told = f"message {count} of a vector of {vector.dtype}"
                require(torch.equal(sent, resumed), f"{told}, as without a stop", f"{told}: another one")


@COMPRESSORS.invariant("Compressor.decode raises UnreadableError")
def damaged_messages_are_vectors_or_unreadable(tried: TriedCompressor) -> None:
    """Any bytes are decoded to a vector of the right form, or refused by `UnreadableError`, and by no other error."""
    draws = torch.Generator().manual_seed(2)
    for vector in tried.vectors():
        compress = tried.make()
        right = as_bytes(compress.encode(normal(vector, 1), Slot("x", vector, 0, 2)))
        for attempt in range(25):
            length = max(0, len(right) + (0, 0, 0, -7, 5)[attempt % 5])
            wrong = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=draws)
            if attempt % 5 == 1 and length:  # but for one byte it is right
                at = int(torch.randint(0, length, (), generator=draws))
                wrong = torch.cat([right[:at], wrong[at : at + 1], right[at + 1 :]])
            try:
                read = compress.decode(wrong, vector)
            except UnreadableError:
                continue
            told = f"{length} damaged bytes as a vector"
            require_equal((tuple(read.shape), read.dtype), ((vector.n,), vector.dtype), told)


# -- for a class of one's own


def compressor_checks(
    make: Callable[[], Compressor], shapes: tuple[tuple[int, ...], ...] = SHAPES
) -> list[InvariantCheck]:
    """Returns the checks of a compressor, for `pytest.mark.parametrize`.

    Args:
        make: the class, or a function that builds the compressor.
        shapes: of the parameters in the vectors that it is given.
    """
    return COMPRESSORS.checks(TriedCompressor(make, shapes), name_of(make, make()))


def check_compressor(make: Callable[[], Compressor], **how: Any) -> list[str]:
    """Runs `compressor_checks` and returns the names of the invariants. Raises one `InvariantError` of all failures."""
    return run_all(compressor_checks(make, **how))
