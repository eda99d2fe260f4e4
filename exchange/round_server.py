"""The server of federated rounds ("Server executes" in McMahan et al. 2017, Algorithm 1): it opens one after another,
gives w to the clients of a round, and closes it once all of them have delivered.

    open round r:   S are its clients (participation.py); it misses them all
    one delivers:   it is missed no more
    none is missed: w of the next round (client_updates.py); open round r + 1

A client that asks for the w of a round is answered once that is open. The server does not wait for the dead, nor for a
client that will leave the round, once that has its w.

Where the run is told to stop, no round opens any more once all of the open one have delivered. All clients are told
before which round that is, in the place of its w: so each of them has made all rounds before it, and none a later one.
An answer begins with that number, or with `NEVER`. As all words about stopping it is outside of the ledger.
"""

from collections.abc import Callable
from enum import IntEnum
from math import inf

import torch
from torch import Tensor

from ..comm import Comm
from .client_updates import ClientUpdates
from .participation import Rounds
from .serving import Serving, message_of
from .survivors import isend_to, wait_for

NEVER = -1
HEADER = 24  # bytes: a message, a round, what is told with a delivery


class RoundMessage(IntEnum):
    """The kind of a client's message to the server, at the head of a header."""

    JOIN = 0  # I take part in this round: send me the weights once it is open
    DELIVER = 1  # what I bring of this round follows
    PEEK = 2  # send me the weights that this round starts from, to evaluate, and when they were made
    DONE = 3  # I take part in no more; send me the last weights once all are done
    SAVE = 4  # send me what your rules remember, now
    THROUGH = 5  # I take part in no round any more; say once this one is open, or none opens


class RoundServer:
    """`changed`: rounds that changed w. `made_at`: when the last one of them did."""

    def __init__(
        self, weights: Tensor, client_updates: ClientUpdates, rounds: Rounds, comm: Comm, survives: bool
    ) -> None:
        """`weights`: [n], w, which `client_updates` change. `survives`: see `Sync`."""
        self._weights, self._client_updates, self._rounds = weights, client_updates, rounds
        self._comm, self._serving = comm, Serving(comm, rounds.clients, survives)
        self._header = torch.zeros(3, dtype=torch.int64)
        self._open = 0  # the round that is
        self._gone: frozenset[int] = frozenset()  # once resumed: who has left the open round, or will and has w
        self._ends_before = NEVER  # a round, where the run is told to stop
        self._waiting: dict[int, tuple[RoundMessage, int]] = {}  # client -> what it asked for, and of which round
        self.changed, self.made_at = 0, -inf

    def resume(self, number: int, steps: int, inside: bool, through: frozenset[int] = frozenset()) -> None:
        """Resumes in this round, of which so many steps have been made.

        Args:
            number: The round.
            steps: Of the round.
            inside: Replica 0 is in the round, and has its w.
            through: The workers that have no more steps in it, and whose delivery is lost.
        """
        self._open = number
        after = {k: self._rounds.leaves_after(k, number) for k in range(self._rounds.clients)}
        left = {k for k, at in after.items() if at is not None and (at <= steps or (inside and k == 0))}
        self._gone = through | left

    def serve(self, stops_before: Callable[[int], bool] | None) -> None:
        """Serves until all clients are done. `stops_before`: see `Sync`; None: nobody tells the run to stop."""
        serving, self._stops_before = self._serving, stops_before
        # those of the open round that have yet to deliver, or, if they leave it, to fetch w
        self._missing = serving.going & self._rounds.sampled(self._open) - self._gone
        while serving.going:
            serving.hear(self._listen)
            self._advance()
        serving.send_last(self._weights)

    def _listen(self) -> None:
        client = self._comm.recv_any(self._header)
        message, asked, told = self._header.tolist()
        match message:
            case RoundMessage.DELIVER:
                self._client_updates.take(client, told, self._open)
                self._missing.discard(client)
            case RoundMessage.SAVE:
                self._serving.send_state(self._client_updates.server_state(), client)
            case RoundMessage.DONE:
                self._serving.going.discard(client)
                self._missing.discard(client)
            case _:
                self._waiting[client] = message_of(RoundMessage, message, client), asked

    def _advance(self) -> None:
        """Closes the rounds that lack no client, and answers the clients that wait for them, until none is left."""
        going = self._serving.going
        while True:
            going -= self._comm.lost()
            self._missing -= self._comm.lost()
            while not self._missing and not self._ended:
                self._close()
                if not going:
                    return
                self._open += 1
                self._missing = going & self._rounds.sampled(self._open)
                if self._stops_before is not None and self._stops_before(self._open):
                    self._ends_before = self._open
            ready = {k: what for k, (what, asked) in self._waiting.items() if asked <= self._open or self._ended}
            if not ready:
                return
            self._answer(ready)

    @property
    def _ended(self) -> bool:
        return self._ends_before != NEVER

    def _close(self) -> None:
        if self._client_updates.close(self._open):
            self.changed += 1
            self.made_at = self._comm.now()

    def _answer(self, ready: dict[int, RoundMessage]) -> None:
        """Send w to these clients, or say that no round opens for them."""
        aggregation, peeks = ([k for k in ready if ready[k] is what] for what in (RoundMessage.JOIN, RoundMessage.PEEK))
        told, ends_before = ready.keys() - peeks, torch.tensor([self._ends_before])
        with self._comm.ledger.aside():
            sending = isend_to(ends_before, sorted(told), self._comm)
        starts = [] if self._ended else self._client_updates.starts
        with self._comm.timeline.named("fetch"):
            sending += [work for vector in starts for work in isend_to(vector, aggregation, self._comm)]
        with self._comm.ledger.aside():
            made_at = torch.tensor([self.made_at], dtype=torch.float64)
            sending += isend_to(self._weights, peeks, self._comm) + isend_to(made_at, peeks, self._comm)
        wait_for(sending)
        for client in ready:
            del self._waiting[client]
        self._missing -= {k for k in aggregation if self._rounds.leaves_after(k, self._open) is not None}
