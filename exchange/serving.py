"""A server's workers: it hears them until all are done, and goes on without those that die.

What servers of different algorithms have in common. What a worker may say, and what it is answered, is each algorithm's
own, and so is the order of it:

    while serving.going:
        serving.hear(listen)      # takes one message, of whoever is first
        ...                       # answer who may be answered
    serving.send_last(weights)

Worker 0 and servers cannot be done without: worker 0 judges and saves, servers hold what is trained.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

from ..comm import Comm, MessageError, PeerLostError, Work
from ..strategies.core.state import State, to_messages

M = TypeVar("M", bound=IntEnum)


class Serving:
    """One server's. `going`: the workers that have not said yet that they are done, and live as far as is known."""

    def __init__(self, comm: Comm, workers: int, survives: bool) -> None:
        """`workers`: ranks 0 to `workers` - 1 of `comm`; servers follow. `survives`: as `Sync.survives`."""
        self.comm, self.workers, self.survives = comm, workers, survives
        self.going = set(range(workers))

    def hear(self, listen: Callable[[], None]) -> int | None:
        """Let `listen` take a message. Returns the worker whose death was found in its place, which is going no more.

        Raises `PeerLostError` where the others cannot do without the dead.
        """
        try:
            listen()
        except PeerLostError as error:
            if not self.survives or error.rank is None or not 0 < error.rank < self.workers:
                raise
            self.going.discard(error.rank)
            return error.rank
        return None

    def send(self, tensor: Tensor, worker: int) -> None:
        """Sends the tensor to the worker. A dead worker gets nothing, and it is no error."""
        with self._dead_or_not():
            self.comm.send(tensor, worker)

    def send_last(self, *tensors: Tensor, to: Iterable[int] | None = None) -> None:
        """Sends the last tensors, when all are done, to all living workers, outside of the ledger.

        `to`: the workers that this server answers; None for all.
        """
        living = set(range(self.workers) if to is None else to) - self.comm.lost()
        works: list[Work] = []
        with self.comm.ledger.aside():
            for worker in living:
                for tensor in tensors:
                    with self._dead_or_not():
                        works.append(self.comm.isend(tensor, worker))
            for work in works:
                with self._dead_or_not():
                    work.wait()

    def send_state(self, state: State, worker: int) -> None:
        """Sends the state to the worker that saves it, which reads it with `recv_state`; outside of the ledger."""
        with self.comm.ledger.aside():
            for message in to_messages(state):
                self.send(message, worker)

    @contextmanager
    def _dead_or_not(self) -> Iterator[None]:
        try:
            yield
        except PeerLostError:  # the next `hear` finds it
            if not self.survives:
                raise


def message_of(kind: type[M], number: float, sender: int) -> M:
    """Returns the message with this number. Raises `MessageError` with the sender if there is none."""
    try:
        return kind(number)
    except ValueError:
        raise MessageError(f"worker {sender} sent a message of kind {number:g}, which does not exist") from None


def recv_dated(like: Tensor, server: int, comm: Comm) -> tuple[Tensor, float]:
    """Weights of a server, as many as `like`, and when they were made, on the fabric's clock; in that order."""
    weights, made_at = torch.empty_like(like), torch.zeros(1, dtype=torch.float64)
    comm.recv(weights, server)
    comm.recv(made_at, server)
    return weights, float(made_at)
