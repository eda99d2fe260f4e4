"""Federated averaging (FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS, Algorithm 1; arXiv 1602.05629).

K clients with data of their own, one server with the weights w. In round r

    m = max(C K, 1) clients S are sampled;
    each k in S fetches w, trains for E epochs on its own n_k samples, and sends what came of it, w_k;
    w = sum_{k in S} (n_k / n) w_k,   n = sum_{k in S} n_k.

Three parties with equally many samples: w = (m1 + m2 + m3) / 3. C = 1, E = 1 and full batches under plain SGD are
central gradient descent on all samples, n_k uneven or not. One client alone trains as if there were no server: with as
many threads it is serial training, bit for bit. (On processes the server takes its share of the cores, unless
hardware.threads says how many each has.)

Who is sampled follows from (seed, r), so that no message tells it. A round is E epochs of the engine's steps; clients
that are not sampled jump to their next round's first step, and wait there until the server has closed the round before.

Deviations from the paper: n_k counts the samples that w_k was trained on in the round, which is E times its data
set's, and less where training ends inside a round; dividing by n makes the two alike. A client is an optimizer of any
kind, where the paper's is SGD without momentum: it keeps its state from one of its rounds to the next
(`momentum=kept`), or starts each round anew (`momentum=reset`). The server's weights are sums in the order of ranks,
whoever comes first.

A client that dies is left out of the round's mean unless its weights have arrived, and of later rounds. Where nobody's
arrive, w stays. (In a pipeline, a replica that dies while it sends may count in one part's mean and not in another's.)

With `compress` a client delivers the message of its way in the round, w_k - w (exchange/channel.py), of which the
server makes w_k again; w goes to clients whole.

With a `server` rule other than the usual one the server steps with the mean way Delta = sum_k (n_k / n) (w_k - w), by
momentum, Adagrad, Adam or Yogi (exchange/server/). What the rule remembers is sent to replica 0 where it saves, and is
part of a checkpoint.

With `clients` = N of them there are more clients than workers: the data are dealt to N, of whom m = max(C N, 1) take
part in a round, shared out over the workers (exchange/in_turn.py), which train theirs one after another, each from w
and with a new optimizer. That is Algorithm 1 of N clients but for the order of sums, and what is sent is that of P
clients: S bytes a worker and round, however many clients it has trained. A worker that dies takes its clients of that
round with it, and of later rounds those that would be its own.

With an `aggregate` other than the mean, w goes the way that the rule makes of the clients' ways (exchange/joining.py);
with an `attack` some clients deliver another way than theirs.

`consensus` is the server's model at the last round's end that replica 0 has come to: inside a round that is the w that
it fetched. At a round's end it asks the server, which answers when the round is closed; that disturbs nobody, as
replica 0 would wait for the same before its next round. (If it asks late and is not sampled next, the answer may be
the model of a later round.) A checkpoint holds that model and, inside a round, what replica 0 has trained of it: a
resumed replica 0 goes on where it was; the other clients lose what they had trained of that round, do the rest of it
and count for the samples of that rest; and they start with a new optimizer, as their own was not saved.

Cost per step that a worker trains (there are C K of them at a time), S bytes of weights, L steps a round: a client
sends (S + 48) / L (weights and two headers of 24 bytes), and the server S / L for each client. C does not show: it
takes away bytes and trained steps alike. What is delivered and fetched after the last step, where training ends inside
a round, is no step's, and neither stated nor in the ledger. The server holds m deliveries, m S bytes.

Use it where data must stay where they are, clients are many and of different sizes, and a round is dear: they train
for whole epochs before they send anything. Data that differ much between clients slow it down.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ..base import Batch, Cost, Measures, State, Sync, World, payload
from ..errors import LayoutError
from ..exchange.aggregate import Aggregator
from ..exchange.attack import Attack, Honest
from ..exchange.buckets import views_of
from ..exchange.channel import Channel, check_differences, held
from ..exchange.clip import Clip
from ..exchange.compress import Compressor, Dense, vector_of
from ..exchange.flat import check_one_dtype, flatten
from ..exchange.in_turn import InTurn, Shares
from ..exchange.joining import Joining
from ..exchange.server import Plain, ServerRule
from ..exchange.serving import Serving
from ..exchange.survivors import isend_to, wait_for
from ..state import recv_state

HEADER = 24  # bytes: a message, a round, a number of samples


class Message(IntEnum):
    """What a client tells the server, at the head of a header."""

    JOIN = 0  # I take part in this round: send me the weights once it is open
    DELIVER = 1  # my weights of this round follow, trained on so many samples
    PEEK = 2  # send me the weights that this round starts from, to evaluate, and when they were made
    DONE = 3  # I take part in no more; send me the last weights once all are done
    SAVE = 4  # send me what your rule and your aggregate remember, now


class FedAvg(Sync):
    """Clients that train for a whole round between two messages, one server for each part of the model."""

    servers = 1
    synchronous = False
    weights_agree = False
    unaveraged = "has its weights on the server, which would have to be asked for them after each step"
    survives = True

    def __init__(
        self,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        epochs: Annotated[int, Ge(1)] = 1,
        momentum: Literal["kept", "reset"] = "kept",
        seed: Annotated[int, Ge(0)] = 0,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        server: ServerRule | None = None,
        clip: Clip | None = None,
        clients: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        """`fraction`, `epochs`: C and E. `momentum`: of a client's optimizer, all of its state. `seed`: of sampling.

        `compress`: of deliveries; None for no compression. `aggregate`, `attack`: None for the mean, and for nobody.
        `server`: how it steps; None for the whole mean way. `clip`: of a client's own gradient; None for none.
        `clients`: N, trained in turn; None for one a worker. Raises `LayoutError`.
        """
        self.server = server or Plain()
        self.joining, self.clip = Joining(aggregate, attack), clip
        if not self.joining.aggregate.coordinatewise:
            self.max_parts = 1
        self.compress = compress or Dense()
        check_differences(self.compress)
        self.fraction, self.epochs, self.momentum, self.seed = fraction, epochs, momentum, seed
        self.clients = clients
        self._turns: InTurn | None = None  # on a worker that has several
        if clients is not None:
            self._check_in_turn(clients)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values(), "fedavg")  # w, or w_k
        self._channel = Channel(self.compress, comm, {"way": vector_of(parameters.values())})
        whole = self.compress.lossless and isinstance(self.joining.attack, Honest)
        self._began = None if whole else self._weights.clone()  # on a client: the w that it fetched
        shares = self.shares(comm.size - 1)
        if shares is not None and comm.rank < comm.size - 1:
            self._turns = InTurn(shares, comm.rank, self.steps_per_epoch, self._weights)
        self._header = torch.zeros(3, dtype=torch.int64)
        self._server = comm.size - 1
        self._round = 0  # that this client is in, or enters next; on the server, the open one
        self._inside = False  # a round
        self._seen = 0  # samples in this round
        self._finished = False
        self._evaluated: Tensor | None = None  # on replica 0, the server's weights ...
        self._evaluated_round = -1  # ... that this round starts from
        self._rows: Tensor | None = None  # on the server: room for the m deliveries of a round
        self._rounds = 0  # on the server: those that changed w

    # -- a client

    def next_step(self, step: int) -> int:
        if self._turns is not None:
            step, self._round, self._ends_round = self._turns.next_step(step, self._round, self._inside)
            return step
        length = self.epochs * self.steps_per_epoch
        if not self._inside:
            self._round = step // length
            while self.comm.rank not in self._sampled(self._round):
                self._round += 1
                step = self._round * length
        self._ends_round = (step + 1) % length == 0
        return step

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if not self._inside:
            self._tell(Message.JOIN)
            self.comm.recv(self._weights, self._server)
            if self._began is not None:
                self._began.copy_(self._weights)
            self._inside, self._seen = True, 0
            self._keep_to_evaluate(self._weights)
            if self._turns is not None:
                self._turns.begin()
            if self.momentum == "reset":
                self.optimizer.state.clear()
        elif self._turns is not None and self._turns.is_next():
            self._turns.hand_over()
            self.optimizer.state.clear()
        if self._turns is not None:
            self._turns.count(batch.size)
        self._seen += batch.size

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()
        if self._ends_round:
            self._deliver()

    def _deliver(self) -> None:
        if self._turns is not None:
            self._turns.end()
        with self.comm.timeline.named("push"):
            self._tell(Message.DELIVER, self._seen)
            way = self._weights if self._began is None else self._weights - self._began
            way = self.joining.sent(way, self.comm.rank, self._clients, self._round)
            self._channel.isend("way", way, self._server).wait()
        self._inside = False
        self._round += 1

    def drain(self) -> None:
        if self._inside:  # training ends inside a round
            self._deliver()

    def finish(self) -> None:
        self.drain()
        self._tell(Message.DONE)
        self.comm.recv(self._weights, self._server)
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        """The weights that the round starts from that this client is in; between rounds, that the next starts from."""
        if self._finished:
            return super().consensus()
        if self._evaluated is None or self._evaluated_round < self._round:
            self._tell(Message.PEEK)
            weights, made_at = torch.empty_like(self._weights), torch.zeros(1, dtype=torch.float64)
            self.comm.recv(weights, self._server)
            self.comm.recv(made_at, self._server)
            self.made_at = float(made_at)
            self._keep_to_evaluate(weights)
        assert self._evaluated is not None
        return dict(zip(self.parameters, views_of(self._evaluated, list(self.parameters.values())), strict=True))

    def _keep_to_evaluate(self, weights: Tensor) -> None:
        if self.comm.rank == 0:
            self._evaluated, self._evaluated_round = weights.clone(), self._round

    def _tell(self, message: Message, samples: int = 0) -> None:
        self._header.copy_(torch.tensor([message, self._round, samples]))
        self.comm.send(self._header, self._server)

    # -- the server

    def serve(self) -> None:
        self._rows = self._weights.new_empty(min(self._per_round, self._clients), len(self._weights))
        self._serving = serving = Serving(self.comm, self._clients, self.survives)
        self._waiting: dict[int, tuple[Message, int]] = {}  # client -> what it asked for, and of which round
        self._delivered: dict[int, tuple[int, Tensor]] = {}  # k -> n_k, w_k
        self._missing = serving.going & self._sampled(self._round)  # those of the open round that have yet to deliver
        while serving.going:
            serving.hear(self._listen)
            self._advance()
        serving.send_last(self._weights)

    def _listen(self) -> None:
        client = self.comm.recv_any(self._header)
        message, asked, samples = self._header.tolist()
        match message:
            case Message.DELIVER:
                assert self._rows is not None
                weights = self._rows[len(self._delivered)]
                self._channel.recv("way", weights, client)
                if self._began is not None:
                    weights += self._weights
                self._delivered[client] = samples, weights
                self._missing.discard(client)
            case Message.SAVE:
                self._serving.send_state(self._remembered(), client)
            case Message.DONE:
                self._serving.going.discard(client)
                self._missing.discard(client)
            case _:
                self._waiting[client] = Message(message), asked

    def _advance(self) -> None:
        """Close the rounds that miss nobody and answer those who waited for it, until there is no more to do."""
        going = self._serving.going
        while True:
            going -= self.comm.lost()
            self._missing -= self.comm.lost()
            while not self._missing:
                self._average()
                if not going:
                    return
                self._round += 1
                self._missing = going & self._sampled(self._round)
            ready = {client: what for client, (what, asked) in self._waiting.items() if asked <= self._round}
            if not ready:
                return
            for client in ready:
                del self._waiting[client]
            with self.comm.timeline.named("fetch"):
                sending = isend_to(self._weights, [k for k in ready if ready[k] is Message.JOIN], self.comm)
            with self.comm.ledger.aside():
                peeks, made_at = (
                    [k for k in ready if ready[k] is Message.PEEK],
                    torch.tensor([self.made_at], dtype=torch.float64),
                )
                sending += isend_to(self._weights, peeks, self.comm) + isend_to(made_at, peeks, self.comm)
            wait_for(sending)

    def _average(self) -> None:
        """w = sum_k (n_k / n) w_k, or w + what the rule makes of all w_k - w"""
        n = sum(samples for samples, _ in self._delivered.values())
        if n > 0:
            if self.joining.streaming and self.server.plain:
                self._weights.zero_()
                for _, (n_k, w_k) in sorted(self._delivered.items()):
                    self._weights.add_(w_k, alpha=n_k / n)
            else:
                ways = {k: w_k.sub_(self._weights) for k, (_, w_k) in self._delivered.items()}
                samples = {k: n_k for k, (n_k, _) in self._delivered.items()}
                self.server.step(self._weights, self.joining.join(ways, samples, self._clients, self._round))
            self._rounds += 1
            self.made_at = self.comm.now()
        self._delivered.clear()

    # -- who takes part

    @property
    def _clients(self) -> int:
        """K; with `clients`, the workers that have them"""
        return self.comm.size - 1

    @property
    def _per_round(self) -> int:
        """m"""
        return self._share_of(self.clients or self._clients)

    def _share_of(self, clients: int) -> int:
        return max(round(self.fraction * clients), 1)

    def _sampled(self, number: int) -> frozenset[int]:
        if self.clients is not None:
            return frozenset(range(self._clients))  # each has some
        return sampled(self.seed, number, self._clients, self._per_round)

    def shares(self, replicas: int) -> Shares | None:
        if self.clients is None:
            return None
        m = self._share_of(self.clients)
        if m < replicas:
            raise LayoutError(
                f"sync.clients={self.clients}: of them sync.fraction={self.fraction} is {m} in a round, and {replicas} "
                f"workers take part in each; at most hardware.workers={m}, or a larger fraction"
            )
        return Shares(
            self.clients, m, replicas, self.epochs, partial(sampled, self.seed, clients=self.clients, count=m)
        )

    def _check_in_turn(self, clients: int) -> None:
        """What there is one of for each client is not kept. Raises `LayoutError`."""
        given = f"sync.clients={clients}"
        if self.momentum == "kept":
            raise LayoutError(
                f"sync.momentum=kept: with {given} a worker trains one client after another, and keeps no optimizer of "
                "each; choose sync.momentum=reset"
            )
        if not isinstance(self.compress, Dense):
            raise LayoutError(
                f"compress, sync: with {given} a worker sends what its clients make together, and a message would be "
                "made of each client's way; choose compress=none, or sync.clients=null"
            )
        if not self.joining.plain:
            by, usual = ("attack", "none") if self.joining.aggregate.streaming else ("aggregate", "mean")
            raise LayoutError(
                f"{by}, sync: with {given} a worker sends what its clients make together, and the server never has the "
                f"way of each; choose {by}={usual}, or sync.clients=null"
            )
        self.one_rate = f"with {given} a client's steps are made at different times of a run, and have one rate"

    # -- state and measures

    def state_dict(self) -> State:
        """Of replica 0: its optimizer, its round, and what it has trained of it."""
        local: State | None = {"weights": self._weights, "seen": self._seen} if self._inside else None
        if local is not None and self._turns is not None:
            local["turns"] = self._turns.state_dict()
        kept = {"optimizer": self.optimizer.state_dict(), "channel": self._channel.state_dict()}
        return {**kept, "round": self._round, "local": local, "server": self._ask_remembered()}

    def _remembered(self) -> State:
        """Of the server."""
        return {"rule": self.server.state_dict(), "joining": self.joining.state_dict()}

    def _ask_remembered(self) -> State | None:
        """On replica 0, of the server, which is in the round that replica 0 is in, or enters next."""
        if self.comm.rank != 0 or self._finished or (self.server.plain and not self.joining.aggregate.remembers):
            return None
        with self.comm.ledger.aside():
            self._tell(Message.SAVE)
            return recv_state(self._server, self.comm)

    def load_state_dict(self, state: State) -> None:
        self._round = state["round"]
        if self.comm.rank == self._server and (remembered := state.get("server")) is not None:
            self.server.load_state_dict(remembered["rule"])
            self.joining.load_state_dict(remembered["joining"])
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._channel.load_state_dict(state.get("channel", {}))
            if state["local"] is not None:
                self._keep_to_evaluate(self._weights)
                if self._began is not None:
                    self._began.copy_(self._weights)
                if self._turns is not None:
                    self._turns.load_state_dict(state["local"]["turns"])
                self._weights.copy_(state["local"]["weights"])
                self._inside, self._seen = True, state["local"]["seen"]

    def buffers(self) -> list[Tensor]:
        turns = [] if self._turns is None else self._turns.buffers()
        own = (self._evaluated, self._rows, self._began, *self.server.buffers(), *turns)
        return [*(buffer for buffer in own if buffer is not None), *self._channel.buffers()]

    def report(self) -> Measures:
        measured: Measures = {"lost": sorted(self.comm.lost())}
        if self.comm.rank == self._server:
            measured["rounds"] = self._rounds
        return measured

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        return self.joining.notes(self.compress, world.replicas)

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "fedavg")
        self.joining.check(world.replicas)
        size, vector = payload(parameters), vector_of(parameters)
        self.compress.check(vector)
        began = 0 if self.compress.lossless and isinstance(self.joining.attack, Honest) else size
        shares = self.shares(world.replicas)
        own = size + began + held(self.compress, [vector]) + (0 if shares is None else 2 * size)
        if world.steps_per_epoch is None:
            return Cost(
                buffers=own, varies="how many steps a round has, sync.epochs of them, is known once the data are dealt"
            )
        length = self.epochs * world.steps_per_epoch
        joined, delivered = world.often(length, first=1), world.often(length)
        if shares is not None:
            joined, delivered = shares.often(world)
        return Cost(
            worker={"send": HEADER * joined + (self.compress.nbytes(vector) + HEADER) * delivered},
            server={"send": world.replicas * size * joined},
            buffers=own,
            varies=self.compress.varies(None),
        )


@lru_cache(maxsize=256)
def sampled(seed: int, number: int, clients: int, count: int) -> frozenset[int]:
    """The `count` of `clients` that take part in round `number`."""
    return frozenset(np.random.default_rng((seed, number)).choice(clients, count, replace=False).tolist())
