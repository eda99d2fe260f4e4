"""What leaves a worker in place of its gradients, weights or differences, and what it reads from the others.

A sync mode hands over vectors, each under a key, and gets vectors; which messages travel is the compressor's affair
(exchange/compress/). With error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", Interspeech;
Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", ICML, Algorithm 2) the channel keeps, for each key, what has
not been sent yet:

    p = e + x,      C(p) is sent,      e <- p - C(p).

Linear messages are added up by a collective (exchange/collectives/). Others go from everyone to everyone and are added
in the order of ranks, so that all have the same bits.

Cost of a sum of vectors among K workers, with m bytes a message: the collective's for m bytes where messages are
linear, (K-1) m by send where they are not. Error feedback holds one vector for each key.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ...comm import Comm, MessageError, Work
from ..base import State, Traffic, World
from ..errors import LayoutError
from .collectives import Collective, Fabric
from .compress import Compressor, Dense, UnreadableError


class Channel:
    """One worker's."""

    def __init__(self, compress: Compressor, comm: Comm, collective: Collective | None = None) -> None:
        """`collective`: None for the fabric's."""
        self.compress, self.comm, self.collective = compress, comm, collective or Fabric()
        self.lossless = compress.lossless
        self._left_out: dict[str, Tensor] = {}  # e, by key

    def encode(self, key: str, x: Tensor) -> Tensor:
        """[n] -> the message that is sent for it; `x` stays as it is."""
        if not self.compress.error_feedback:
            return self.compress.encode(x)
        if (e := self._left_out.get(key)) is None:
            e = self._left_out[key] = torch.zeros_like(x)
        e += x  # p
        message = self.compress.encode(e)
        e -= self.compress.decode(message, len(e), e.dtype)
        return message

    def decode(self, message: Tensor, like: Tensor, sender: int) -> Tensor:
        """The vector that worker `sender` sent, of the size, dtype and device of `like`. Raises `MessageError`."""
        try:
            return self.compress.decode(message, len(like), like.dtype).to(like.device)
        except UnreadableError as error:
            raise MessageError(
                f"worker {self.comm.rank} cannot read what worker {sender} of {self.comm.name} sent: {error}"
            ) from None

    # -- one to one

    def isend(self, key: str, x: Tensor, dst: int) -> Work:
        message = self.encode(key, x)
        return self.comm.isend(message if message is x else as_bytes(message), dst)

    def recv(self, out: Tensor, src: int) -> None:
        """Fill `out` with the vector that comes next from `src`. Raises `MessageError`."""
        if isinstance(self.compress, Dense):
            self.comm.recv(out, src)
            return
        out.copy_(self.receive(out, src))

    def receive(self, like: Tensor, src: int) -> Tensor:
        """The vector that comes next from `src`, of the size, dtype and device of `like`. Raises `MessageError`."""
        return self.decode(self.comm.recv_message(src, self.compress.nbytes(len(like), like.dtype)), like, src)

    # -- all together

    def all_reduce(self, key: str, x: Tensor) -> Work:
        """x <- sum over workers of what is decoded, in place, once waited for; alike on all, bit for bit."""
        message = self.encode(key, x)
        if self.compress.linear:
            return _Reducing(self, message, x)
        message = message.cpu()
        others = [(self.comm.rank + i) % self.comm.size for i in range(1, self.comm.size)]
        return _Gathering(self, message, x, [self.comm.isend(message, other) for other in others])

    def all_gather(self, key: str, x: Tensor, rows: Tensor) -> None:
        """[n] on each worker -> `rows`, [size, n], on all: what is decoded of each. Raises `MessageError`."""
        rank, message = self.comm.rank, as_bytes(self.encode(key, x))
        others = [(rank + i) % self.comm.size for i in range(1, self.comm.size)]
        sends = [self.comm.isend(message, other) for other in others]
        for other in range(self.comm.size):
            rows[other] = self.decode(message, x, rank) if other == rank else self.receive(x, other)
        for send in sends:
            send.wait()

    # -- state and cost

    def state_dict(self) -> State:
        return dict(self._left_out)

    def load_state_dict(self, state: State) -> None:
        self._left_out = {key: e.clone() for key, e in state.items()}

    def buffers(self) -> list[Tensor]:
        return list(self._left_out.values())


def check_adds_up(compress: Compressor, collective: Collective) -> None:
    """Refuse a collective that would have nothing to do. Raises `LayoutError`."""
    if not compress.linear and not isinstance(collective, Fabric):
        raise LayoutError(
            "collective, compress: these messages cannot be added up on their way, they go from everyone to everyone; "
            "choose collective=fabric, or compress=none or bf16"
        )


def of_sums(
    compress: Compressor, collective: Collective, vectors: Iterable[tuple[int, torch.dtype]], world: World
) -> Traffic:
    """Stated traffic of a worker for one sum of these vectors."""
    size = sum(compress.nbytes(n, dtype) for n, dtype in vectors)
    return collective.traffic(size, world) if compress.linear else {"send": (world.replicas - 1) * size}


def notes_on_sums(
    compress: Compressor, collective: Collective, vectors: Iterable[tuple[int, torch.dtype]], world: World
) -> list[str]:
    """Where one sends nothing, or more than without compression; see `Sync.notes`."""
    named = [
        word
        for word, unused in (("compress", isinstance(compress, Dense)), ("collective", isinstance(collective, Fabric)))
        if not unused
    ]
    if world.replicas == 1:
        return [f"{', '.join(named)}: one replica alone sends nothing"] if named else []
    vectors = list(vectors)
    sent, plain = (sum(of_sums(rule, Fabric(), vectors, world).values()) for rule in (compress, Dense()))
    if sent < plain or isinstance(compress, Dense):
        return []
    return [
        f"compress: sends {sent:,.0f} bytes for a sum for which compress=none sends {plain:,.0f}: messages go from "
        f"everyone to everyone, and with {world.replicas} replicas must be shorter"
    ]


def left_out(compress: Compressor, vectors: Iterable[tuple[int, torch.dtype]]) -> int:
    """Stated bytes that error feedback holds for these vectors."""
    return sum(n * dtype.itemsize for n, dtype in vectors) if compress.error_feedback else 0


def as_bytes(message: Tensor) -> Tensor:
    """[m] of any dtype -> its bytes, on the CPU."""
    return message.detach().cpu().contiguous().view(torch.uint8)


class _Reducing(Work):
    """Linear messages under way."""

    def __init__(self, channel: Channel, message: Tensor, x: Tensor) -> None:
        self._channel, self._message, self._x = channel, message, x
        self._work = channel.collective.all_reduce(message, channel.comm)

    def wait(self) -> None:
        self._work.wait()
        if self._message is not self._x:
            compress = self._channel.compress
            self._x.copy_(compress.decode(self._message, len(self._x), self._x.dtype))


class _Gathering(Work):
    """Messages of everyone to everyone under way."""

    def __init__(self, channel: Channel, message: Tensor, x: Tensor, sends: list[Work]) -> None:
        self._channel, self._message, self._x, self._sends = channel, message, x, sends

    def wait(self) -> None:
        channel, x, rank = self._channel, self._x, self._channel.comm.rank
        x.zero_()
        for other in range(channel.comm.size):
            x += channel.decode(self._message, x, rank) if other == rank else channel.receive(x, other)
        for send in self._sends:
            send.wait()
