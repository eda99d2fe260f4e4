"""A client's messages to the server of federated rounds (round_server.py), and the answers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..comm import Comm
from ..strategies.core.state import State, recv_state
from ..strategies.core.sync import StoppedBefore
from .participation import OwnRounds
from .round_server import NEVER, RoundMessage
from .serving import recv_dated


class RoundClient:
    """One worker's. `own`: its rounds. `length`: the steps of a round. The server is the last of `comm`."""

    def __init__(self, own: OwnRounds, length: int, comm: Comm) -> None:
        self._own, self._length, self._comm, self._server = own, length, comm, comm.size - 1
        self._header = torch.zeros(3, dtype=torch.int64)

    def join(self, starts: Sequence[Tensor]) -> None:
        """Receives the vectors that this worker's round begins with. Raises `StoppedBefore`."""
        self.tell(RoundMessage.JOIN)
        self._hear_of_end(self._own.number)
        for vector in starts:
            self._comm.recv(vector, self._server)

    def is_through(self, last: int) -> None:
        """Tells the server that this worker takes part in no more rounds up to `last`.

        Raises `StoppedBefore` where one of them does not open.
        """
        with self._comm.ledger.aside():
            self.tell(RoundMessage.THROUGH, number=last)
        self._hear_of_end(last)

    def _hear_of_end(self, number: int) -> None:
        before = torch.zeros(1, dtype=torch.int64)
        with self._comm.ledger.aside():
            self._comm.recv(before, self._server)
        if NEVER < int(before) <= number:
            self._own.number = int(before)
            raise StoppedBefore(int(before) * self._length)

    def peek(self, like: Tensor) -> tuple[Tensor, float]:
        """Returns the weights that this worker's round starts with, and when they were made."""
        self.tell(RoundMessage.PEEK)
        return recv_dated(like, self._server, self._comm)

    def ask_remembered(self) -> State:
        """Returns the state of the server's rules."""
        with self._comm.ledger.aside():
            self.tell(RoundMessage.SAVE)
            return recv_state(self._server, self._comm)

    def finish(self, weights: Tensor) -> None:
        """Receives the last weights."""
        self.tell(RoundMessage.DONE)
        self._comm.recv(weights, self._server)

    def tell(self, message: RoundMessage, told: int = 0, number: int | None = None) -> None:
        """`told`: with a delivery. `number`: of a round; None for this worker's own."""
        self._header.copy_(torch.tensor([message, self._own.number if number is None else number, told]))
        self._comm.send(self._header, self._server)
