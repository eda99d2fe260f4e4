"""The end of a federated round: what a client delivers, and what the server collects of all.

Each client k of the round brings w_k, or its change w_k - w, and n_k, the samples that it was trained on. What the
next w is made of them, sync/fedavg.py says. Where the server sees each of these changes (`OpenUpdates`) it may do
anything with them. Where it learns their sum alone (secure/client_updates.py) it steps with that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..comm import Comm, MessageError
from ..strategies.core.cost import payload
from ..strategies.core.errors import NotFiniteError
from ..strategies.core.state import State
from ..strategies.core.sync import Measures
from .aggregation import Aggregation
from .channel import Channel, held
from .client import ClientRule
from .compress import Compressor, vector_of
from .participation import Rounds
from .privacy import DPFedAvg
from .server import ServerRule

NUMBER = 8  # bytes: what a client rule counts

Delivered = Mapping[int, tuple[Tensor, int]]  # client -> w_k, and n_k or its other weight in the mean
Join = Callable[[Delivered], Tensor]  # what a rule makes of all w_k - w
Round = Callable[[Tensor, Delivered, Join | None, ServerRule], Tensor]  # of w, in place: the next w
ServerUpdate = Callable[[Tensor, Tensor, ServerRule], Tensor]  # of w, in place, and Delta: the next w


class Rules(NamedTuple):
    """The rules that turn a round's deliveries into new weights; `privacy`: None where clients are not hidden."""

    server: ServerRule
    client: ClientRule
    aggregation: Aggregation
    privacy: DPFedAvg | None


class ClientUpdates(ABC):
    """One object on each client and one on the server, which is the last of `comm`. In a round

        client:  `begin`, once it has fetched w; at the round's end it tells the number `told`, then `deliver`
        server:  `take` with the number that a client has told, for each of them; `close` once all have delivered

    `brings_weights`: a client delivers w_k, and not its change from w, which both must know then.
    """

    brings_weights: bool

    def __init__(self, rules: Rules) -> None:
        self._server, self._client, self._aggregation, self._privacy = rules

    def prepare(
        self, weights: Tensor, parameters: Sequence[Tensor], optimizer: Optimizer, rounds: Rounds, comm: Comm
    ) -> None:
        """Prepares the server or a client. `weights`: [n], w or w_k. `parameters`: the parameters in it."""
        self._weights, self._optimizer, self._rounds, self._comm = weights, optimizer, rounds, comm
        self._began = None if self.brings_weights else weights.clone()  # on a client: the w that it fetched

    @property
    def starts(self) -> list[Tensor]:
        """The vectors sent as a round begins, [n] each: w, and c of a rule that `controls`."""
        return [self._weights, self._client.c] if self._client.controls else [self._weights]

    # -- on a client

    def begin(self) -> None:
        """Notes the server's weights, from which this client's training begins."""
        if self._began is not None:
            self._began.copy_(self._weights)

    @abstractmethod
    def told(self, samples: int, is_over: bool) -> int:
        """Returns the number that the client first tells the server. `is_over`: training ended inside of the round."""

    @abstractmethod
    def deliver(self, samples: int, number: int) -> None:
        """The weights as they are now, which were trained on so many samples in round `number`."""

    def _way(self) -> Tensor:
        """[n]: w_k - w, or w_k."""
        return self._weights if self._began is None else self._weights - self._began

    def own_state(self) -> State:
        """Returns the state that the client needs again for its next delivery."""
        return {}

    def load_own_state(self, state: State) -> None:
        """Restores the state that `own_state` returned."""

    # -- on the server

    @abstractmethod
    def take(self, client: int, told: int, number: int) -> None:
        """Takes the delivery of a client to the open round, `number`."""

    @abstractmethod
    def close(self, number: int) -> bool:
        """Makes the w of the next round. Returns False, and leaves w, where no delivery counts.

        Raises `NotFiniteError`.
        """

    @property
    def remembers(self) -> bool:
        """Says whether `server_state` holds anything."""
        return not self._server.plain or self._aggregation.aggregate.traits.remembers or self._client.controls

    def server_state(self) -> State:
        """Returns the state of the rules on the server."""
        state = {"rule": self._server.state_dict(), "joining": self._aggregation.state_dict()}
        return {**state, "client": self._client.server_state()}

    def load_server_state(self, state: State) -> None:
        """Restores the state that `server_state` returned, on the server."""
        self._client.load_server_state(state["client"], None)
        self._server.load_state_dict(state["rule"])
        self._aggregation.load_state_dict(state["joining"])

    # -- measures, and what is stated

    def report(self, serves: bool) -> Measures:
        """Returns the measures of the server (`serves`), or of this client."""
        return {}

    def buffers(self) -> list[Tensor]:
        return [] if self._began is None else [self._began]

    @abstractmethod
    def check(self, parameters: Sequence[Tensor], per_round: int) -> None:
        """Raises `ConfigError`."""

    @abstractmethod
    def nbytes(self, parameters: Sequence[Tensor], per_round: int) -> tuple[int, int]:
        """Returns the stated bytes of a delivery: sent by the client after `told`, and by the server meanwhile."""

    def holds(self, parameters: Sequence[Tensor]) -> int:
        """Stated bytes on a client."""
        return 0 if self.brings_weights else payload(parameters)

    def server_holds(self, size: int, clients: int) -> int:
        """Stated bytes on the server, which so many clients at most deliver `size` bytes to in a round."""
        return 0 if self.brings_weights else size


class DeliveredUpdate(NamedTuple):
    """The delivery of one client in a round. `change`, `length`: see `ClientRule`."""

    samples: int  # n_k
    weights: Tensor  # [n], w_k
    change: Tensor | None
    length: float


def _refuse(client: int, samples: int, number: int) -> None:
    raise MessageError(f"client {client} says that it trained on {samples} samples in round {number}")


class OpenUpdates(ClientUpdates):
    """Deliveries that the server sees: each client's w_k, or the message of its change, and its rule's vectors."""

    def __init__(self, rules: Rules, compress: Compressor, round: Round) -> None:
        super().__init__(rules)
        self._compress, self._round = compress, round
        self.brings_weights = compress.traits.lossless and not rules.aggregation.attack.forges

    def prepare(
        self, weights: Tensor, parameters: Sequence[Tensor], optimizer: Optimizer, rounds: Rounds, comm: Comm
    ) -> None:
        super().prepare(weights, parameters, optimizer, rounds, comm)
        vectors = ("way", "change") if self._client.controls else ("way",)
        self._channel = Channel(self._compress, comm, dict.fromkeys(vectors, vector_of(parameters)))
        self._delivered: dict[int, DeliveredUpdate] = {}  # by client
        room = min(rounds.per_round, rounds.clients) if comm.rank == comm.size - 1 else 0
        self._rows = [weights.new_empty(room, len(weights)) for _ in vectors]  # by place among those of the round

    # -- on a client

    def told(self, samples: int, is_over: bool) -> int:
        return samples

    def deliver(self, samples: int, number: int) -> None:
        server = self._comm.size - 1
        if self._client.counts:
            self._comm.send(torch.tensor([self._client.length()], dtype=torch.float64), server)
        way = self._aggregation.sent(self._way(), self._comm.rank, self._rounds.clients, number)
        self._channel.isend("way", way, server).wait()
        if self._client.controls:
            self._channel.isend("change", self._client.change(), server).wait()

    # -- on the server

    def take(self, client: int, told: int, number: int) -> None:
        of = sorted(self._rounds.sampled(number))
        if client not in of:
            raise MessageError(f"client {client} delivered in round {number}, in which it does not take part")
        place = of.index(client)
        weights, *change = (rows[place] for rows in self._rows)
        length = torch.ones(1, dtype=torch.float64)
        read = self._aggregation.read
        if self._client.counts:
            read(client, length, partial(self._comm.recv, length, client))
        read(client, weights, partial(self._channel.recv, "way", weights, client))
        if not self.brings_weights:
            weights += self._weights
        if self._client.controls:
            read(client, change[0], partial(self._channel.recv, "change", change[0], client))
        if not length.isfinite():
            weights.fill_(torch.nan)
        if told < 0:
            read(client, weights, partial(_refuse, client, told, number))
        self._delivered[client] = DeliveredUpdate(
            told if told >= 0 else 1, weights, change[0] if change else None, float(length)
        )

    def close(self, number: int) -> bool:
        counts = {k: self._rounds.weight(k, each.samples, number) for k, each in self._delivered.items()}
        n = sum(counts.values())
        if n > 0:
            self._elastic_force(counts)
            delivered = {k: (each.weights, counts[k]) for k, each in sorted(self._delivered.items())}
            plain = self._aggregation.streaming and self._server.plain and self._privacy is None
            join = None if plain else partial(self._change_of_all, number)
            self._round(self._weights, delivered, join, self._server)
            changes = {k: each.change for k, each in self._delivered.items() if each.change is not None}
            if self._aggregation.aggregate.traits.robust:
                changes = {k: change for k, change in changes.items() if change.isfinite().all()}
            self._client.take(changes, {k: counts[k] / n for k in changes})
            self._check_finite(number)
        self._delivered.clear()
        return n > 0

    def _elastic_force(self, counts: dict[int, int]) -> None:
        """w_k <- w + f_k (w_k - w)"""
        lengths = {k: each.length for k, each in self._delivered.items()}
        factors = self._client.factors(counts, lengths, self._aggregation.aggregate.traits.robust)
        for k, factor in factors.items():
            if factor != 1:
                self._delivered[k].weights.sub_(self._weights).mul_(factor).add_(self._weights)

    def _change_of_all(self, number: int, delivered: Delivered) -> Tensor:
        """[n]: Delta. The w_k are written over."""
        ways = {k: w_k.sub_(self._weights) for k, (w_k, _) in delivered.items()}
        m, of = self._rounds.per_round, sorted(self._rounds.sampled(number))
        lost = len(self._comm.lost())
        self._aggregation.check_left(min(m, self._rounds.clients - lost), lost)
        if self._privacy is not None:
            return self._privacy.mean(ways, m, number)
        brought = {k: delivered[k][1] if k in delivered else 0 for k in of}
        return self._aggregation.join_in_place(self._rows[0][: len(of)], of, brought, self._rounds.clients, number, m)

    def _check_finite(self, number: int) -> None:
        if not self._weights.isfinite().all():
            raise NotFiniteError(
                f"the weights that round {number} makes are NaN or infinite, as clients "
                f"{', '.join(map(str, sorted(self._delivered)))} or one of them delivered such; "
                f"{self._client.may_help(self._optimizer)}"
            )

    # -- state, and what is stated

    def own_state(self) -> State:
        return self._channel.state_dict()

    def load_own_state(self, state: State) -> None:
        self._channel.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [*super().buffers(), *self._rows, *self._channel.buffers()]

    def check(self, parameters: Sequence[Tensor], per_round: int) -> None:
        self._compress.check(vector_of(parameters))

    def nbytes(self, parameters: Sequence[Tensor], per_round: int) -> tuple[int, int]:
        vectors = 1 + self._client.controls
        return self._compress.nbytes(vector_of(parameters)) * vectors + NUMBER * self._client.counts, 0

    def holds(self, parameters: Sequence[Tensor]) -> int:
        vectors = [vector_of(parameters)] * (1 + self._client.controls)
        return super().holds(parameters) + held(self._compress, vectors)

    def server_holds(self, size: int, clients: int) -> int:
        return super().server_holds(size, clients) + clients * (1 + self._client.controls) * size
