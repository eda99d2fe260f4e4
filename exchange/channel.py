"""A channel compresses the vectors that a worker sends, and decodes the messages that it receives.

A sync mode hands over vectors, each under a key, and gets vectors; which messages travel is the compressor's affair
(exchange/compress/). The channel keeps a slot for each key: with error feedback (compress/feedback.py) it holds what
has not been sent yet.

Rules that are `Summed` are followed by sums that a collective makes (exchange/collectives/). Messages of others go from
everyone to everyone and are added in the order of ranks, so that all have the same bits.

Cost of a sum of vectors among K workers, with m bytes a message: the collective's for what a `Summed` rule adds up,
(K-1) m by send for others. Slots hold what the compressor states.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..comm import Comm, MessageError, Work
from ..conf.notes import Note
from ..cost.transfer import Transfer, passes
from ..strategies.core.cost import World
from ..strategies.core.held import Held
from ..strategies.core.state import State
from . import profiling
from .collectives import Collective, Fabric
from .compress import Compressor, Dense, Slot, Summed, UnreadableError, Vector
from .compress.feedback import ErrorFeedback, WatchedFeedback
from .compress.masked import KEPT, places_of
from .flat import as_bytes

Read = Callable[[int, Tensor, Callable[[], object]], None]  # by whom, into what, by what call


class Channel:
    """One worker's. `vectors`: what travels under each key."""

    def __init__(
        self,
        compress: Compressor,
        comm: Comm,
        vectors: Mapping[str, Vector],
        collective: Collective | None = None,
        feedback: bool = True,
    ) -> None:
        """`collective`: None for the fabric's. `feedback`: False where what is left out is known by other means."""
        self.compress, self.comm, self.collective = compress, comm, collective or Fabric()
        self.feedback = compress.feedback if feedback else None
        self._slots = {key: Slot(key, vector, comm.rank, comm.size) for key, vector in vectors.items()}

    def encode(self, key: str, x: Tensor) -> Tensor:
        """Returns the message for x, [n]; `x` stays unchanged."""
        return self._encoded(key, x)[0]

    def _encoded(self, key: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the message for x, [n], and what it is decoded to, [n], if error feedback has decoded it."""
        slot, sent = self._slots[key], None
        p = x if self.feedback is None else self.feedback.add(x, slot)
        message = self.compress.encode(p, slot)
        if self.feedback is not None:
            sent = self.compress.decode(message, slot.vector)
            self.feedback.keep(p, sent, slot)
        slot.count += 1
        self.touch_to_encode(slot.vector)
        return message, sent

    def touch_to_encode(self, vector: Vector) -> None:
        """Counts the memory traffic of this worker for one message that it encodes."""
        feedback = 0.0
        if self.feedback is not None:
            feedback = self.feedback.passes * vector.nbytes + self.compress.decoding(vector)
        self.comm.touch(self.compress.encoding(vector) + feedback)

    def decode(self, key: str, message: Tensor, like: Tensor, sender: int) -> Tensor:
        """The vector that worker `sender` sent, on the device of `like`. Raises `MessageError`."""
        vector = self._slots[key].vector
        self.comm.touch(self.compress.decoding(vector))
        try:
            return self.compress.decode(message, vector).to(like.device)
        except UnreadableError as error:
            raise MessageError(
                f"worker {self.comm.rank} cannot read what worker {sender} of {self.comm.name} sent: {error}"
            ) from None

    # -- one to one

    def isend(self, key: str, x: Tensor, dst: int) -> Work:
        message = self.encode(key, x)
        return self.comm.isend(message if message is x else as_bytes(message), dst)

    def recv(self, key: str, out: Tensor, src: int) -> None:
        """Fill `out` with the vector that comes next from `src`. Raises `MessageError`."""
        if isinstance(self.compress, Dense):
            self.comm.recv(out, src)
            return
        out.copy_(self.receive(key, out, src))

    def receive(self, key: str, like: Tensor, src: int) -> Tensor:
        """The vector that comes next from `src`, on the device of `like`. Raises `MessageError`."""
        most = self.compress.nbytes(self._slots[key].vector)
        return self.decode(key, self.comm.recv_message(src, most), like, src)

    # -- all together

    def all_reduce(self, key: str, x: Tensor) -> Work:
        """Starts to sum x over workers, and replaces it by the rule's result, once waited for.

        The result is the same on all, bit for bit.
        """
        if isinstance(self.compress, Summed):
            return _Totalling(self, self.compress, self._slots[key], x)
        message, sent = self._encoded(key, x)
        message = message.cpu()
        if sent is not None:
            x.copy_(sent)
        others = [(self.comm.rank + i) % self.comm.size for i in range(1, self.comm.size)]
        sends = [self.comm.isend(message, other) for other in others]
        return _Gathering(self, key, x, None if sent is not None else message, sends)

    def all_gather(self, key: str, x: Tensor, rows: Tensor, read: Read) -> None:
        """Writes the decoded vectors of all workers, [n] each, into `rows`, [size, n], on every worker.

        `read`: see `Aggregation.read`, which says what becomes of a message that cannot be read.
        """
        rank, (message, sent) = self.comm.rank, self._encoded(key, x)
        message = as_bytes(message)
        others = [(rank + i) % self.comm.size for i in range(1, self.comm.size)]
        sends = [self.comm.isend(message, other) for other in others]
        for other in range(self.comm.size):
            if other == rank:
                rows[other] = self.decode(key, message, x, rank) if sent is None else sent
            else:
                read(other, rows[other], partial(self._receive_into, rows[other], key, x, other))
        for send in sends:
            send.wait()

    def _receive_into(self, row: Tensor, key: str, like: Tensor, src: int) -> None:
        row.copy_(self.receive(key, like, src))

    def finish(self, key: str, total: Tensor) -> Tensor:
        """Returns the vector made of a sum of decoded messages, [n]; see `Compressor.finish`."""
        return self.compress.finish(total, self._slots[key].vector)

    def keep(self, kept: Mapping[str, Tensor]) -> None:
        """Sets the kept entries of the vectors of these keys, [n] of bool each.

        All other entries are 0 on all workers from now on.
        """
        if self.compress.traits.of_kept:
            for key, each in kept.items():
                self._slots[key].memory[KEPT] = places_of(each)

    # -- state and cost

    def state_dict(self) -> State:
        """Returns the state of the slots; {} if they keep none."""
        if isinstance(self.compress, Dense):
            return {}
        return {key: {"count": slot.count, "memory": dict(slot.memory)} for key, slot in self._slots.items()}

    def load_state_dict(self, state: State) -> None:
        """Takes over the slots. Under another strategy they have other keys, no memory, and are counted alike."""
        most = max((saved["count"] for saved in state.values()), default=0)
        for key, slot in self._slots.items():
            saved = state.get(key, {"count": most, "memory": {}})
            slot.count = saved["count"]
            slot.memory = {name: tensor.clone() for name, tensor in saved["memory"].items()}

    def shows(self) -> dict[str, Held]:
        """Returns the lengths of the newest vector that was to be sent, of what was sent, and of what was left out.

        They are those of all keys together. The first call begins to note them.
        """
        if self.feedback is None or isinstance(self.compress, Summed):
            return {}
        if not isinstance(self.feedback, WatchedFeedback):
            self.feedback = WatchedFeedback(self.feedback)
        return self.feedback.shows()

    def buffers(self) -> list[Tensor]:
        return [tensor for slot in self._slots.values() for tensor in slot.memory.values()]


def sums(compress: Compressor, collective: Collective, vectors: Sequence[Vector], world: World) -> list[Transfer]:
    """Returns what a worker sends for one sum of these vectors. Raises `ConfigError`."""
    for vector in vectors:
        compress.check(vector)
    return [each for vector in vectors for each in _sum(compress, collective, vector, world)]


def _sum(compress: Compressor, collective: Collective, vector: Vector, world: World) -> Iterator[Transfer]:
    if isinstance(compress, Summed):
        found = [each for size in compress.of_total(vector) for each in collective.transfers(size, world)]
    else:
        sent = (world.replicas - 1) * compress.mean_nbytes(vector, world.steps)
        found = [Transfer("all_gather", world.replicas, sent, primitive="send")]
    if world.replicas > 1:
        messages = partial(profiling.of_message, compress, vector, world.replicas)
        profile = None if isinstance(compress, Dense) else messages
        found[0] = replace(found[0], kernels=passes("mul_", vector.n), profile=profile)  # into what is sent
    yield from found


def notes_on_sums(compress: Compressor, collective: Collective, vectors: Sequence[Vector], world: World) -> list[Note]:
    """Returns notes for a worker that sends nothing, or more than without compression; see `Sync.notes`."""
    about = tuple(
        word
        for word, unused in (("compress", isinstance(compress, Dense)), ("collective", isinstance(collective, Fabric)))
        if not unused
    )
    if world.replicas == 1:
        return [Note(about, "one replica alone sends nothing")] if about else []
    sent, plain = (sum(each.nbytes for each in sums(rule, Fabric(), vectors, world)) for rule in (compress, Dense()))
    if sent < plain or isinstance(compress, Dense) or compress.varies(world.steps):
        return []
    why = f"messages go from everyone to everyone, and with {world.replicas} replicas must be shorter"
    if isinstance(compress, Summed):
        why = "with these knobs nothing of this model becomes shorter"
    text = f"sends {sent:,.0f} bytes for a sum for which compress=none sends {plain:,.0f}: {why}"
    return [Note(("compress",), text)]


def held(compress: Compressor, vectors: Iterable[Vector]) -> int:
    """Stated bytes that slots hold for these vectors."""
    return sum(compress.held(vector) for vector in vectors)


class _Totalling(Work):
    """The sums of a `Summed` rule, one under way."""

    def __init__(self, channel: Channel, compress: Summed, slot: Slot, x: Tensor) -> None:
        self._channel, self._slot, self._x = channel, slot, x
        p, passes, feedback = x, 0.0, channel.feedback
        if feedback is not None:
            assert isinstance(feedback, ErrorFeedback)  # p is what the slot keeps, and becomes what is left
            p, passes = feedback.add(x, slot), feedback.passes
        channel.comm.touch(compress.encoding(slot.vector) + passes * slot.vector.nbytes)
        self._rule = compress.total(p, x, slot)
        self._work = self._sum(next(self._rule))

    def wait(self) -> None:
        channel, x, slot = self._channel, self._x, self._slot
        while True:
            self._work.wait()
            try:
                self._work = self._sum(next(self._rule))
            except StopIteration:
                break
        channel.comm.touch(channel.compress.decoding(slot.vector))
        slot.count += 1
        if (made := channel.finish(slot.key, x)) is not x:
            x.copy_(made)

    def _sum(self, tensor: Tensor) -> Work:
        return self._channel.collective.all_reduce(tensor, self._channel.comm)


class _Gathering(Work):
    """Messages of everyone to everyone under way.

    `message`: this worker's own, to be decoded; None if `x` is what it is decoded to.
    """

    def __init__(self, channel: Channel, key: str, x: Tensor, message: Tensor | None, sends: list[Work]) -> None:
        self._channel, self._key, self._x, self._message, self._sends = channel, key, x, message, sends

    def wait(self) -> None:
        channel, x = self._channel, self._x
        total = self._row(0)
        for other in range(1, channel.comm.size):
            total += self._row(other)
        for send in self._sends:
            send.wait()
        if (made := channel.finish(self._key, total)) is not x:
            x.copy_(made)

    def _row(self, other: int) -> Tensor:
        if other != self._channel.comm.rank:
            return self._channel.receive(self._key, self._x, other)
        if self._message is None:
            return self._x
        return self._channel.decode(self._key, self._message, self._x, other)
