"""What leaves a worker in place of its gradients, weights or differences, and what it reads from the others.

A sync mode hands over vectors, each under a key, and gets vectors; which messages travel is the compressor's affair
(exchange/compress/). With error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", Interspeech;
Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", ICML, Algorithm 2) the channel keeps, for each key, what has
not been sent yet:

    p = e + x,      C(p) is sent,      e <- p - C(p).

Linear messages are all-reduced. Others go from everyone to everyone and are added in the order of ranks, so that all
have the same bits.

Cost of a sum of vectors among K workers, with m bytes a message: 2 (K-1)/K m by all-reduce where messages are linear,
(K-1) m by send where they are not. Error feedback holds one vector for each key.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ...comm import Comm, MessageError, Work
from ..base import State, Traffic
from .compress import Compressor, Dense, UnreadableError


class Channel:
    """One worker's."""

    def __init__(self, compress: Compressor, comm: Comm) -> None:
        self.compress, self.comm = compress, comm
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

    # -- state and cost

    def state_dict(self) -> State:
        return dict(self._left_out)

    def load_state_dict(self, state: State) -> None:
        self._left_out = {key: e.clone() for key, e in state.items()}

    def buffers(self) -> list[Tensor]:
        return list(self._left_out.values())


def of_sums(compress: Compressor, vectors: Iterable[tuple[int, torch.dtype]], workers: int) -> Traffic:
    """Stated traffic of a worker for one sum of these vectors over `workers`."""
    size = sum(compress.nbytes(n, dtype) for n, dtype in vectors)
    if compress.linear:
        return {"all_reduce": 2 * (workers - 1) / workers * size}
    return {"send": (workers - 1) * size}


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
        self._work = channel.comm.all_reduce(message)

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
