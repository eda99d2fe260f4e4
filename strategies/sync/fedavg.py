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

Who is sampled follows from (seed, r), so that no message tells it (exchange/participation.py). A round is E epochs of
the engine's steps; clients that are not sampled jump to their next round's first step, and wait there until the server
has closed the round before.

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

With a `client` rule other than the usual one clients correct their steps, and deliver something beside their weights
(exchange/client/): FedProx, SCAFFOLD, FedNova, MimeLite. What the server keeps of that is part of a checkpoint.

With `sampling=weighted` the m clients of a round are drawn by their share n_k / n of all samples, with replacement, and
their mean is plain, one that was drawn twice counting twice (Li et al. 2020, "On the Convergence of FedAvg on Non-IID
Data", ICLR, scheme I; arXiv 1907.02189). So a client counts as much as it has samples, on average over rounds.

With `dropout=p` a client that was sampled leaves the round with probability p, after one of its L steps, each as likely
as another. What it has trained is lost, but for its optimizer's state; the round's mean is of those that deliver, and
where nobody does, w stays. Who leaves follows from (seed, r, k). The server does not wait for one that leaves, once
that has its weights.

With `privacy=dp_fedavg` the server clips each way to C, steps with 1/m of their sum, and adds noise
(exchange/privacy/dp_fedavg.py): n_k count no more.

With `secure=bonawitz` the server learns the sum of the ways, and neither one of them nor n_k
(exchange/secure/bonawitz.py): in place of delivering, clients take part in its protocol, which begins once all who
live have come to the round's end. With both, clients clip their own ways, and the server adds the noise to the sum.

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
from contextlib import nullcontext
from enum import IntEnum
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ..base import Batch, Cost, Measures, Memory, State, Sync, World, payload
from ..errors import LayoutError, NotFiniteError, TooFewClientsError
from ..exchange.aggregate import Aggregator
from ..exchange.attack import Attack
from ..exchange.buckets import views_of
from ..exchange.channel import Channel, check_differences, held
from ..exchange.client import ClientRule
from ..exchange.client import Plain as PlainClient
from ..exchange.clip import Clip
from ..exchange.compress import Compressor, Dense, vector_of
from ..exchange.federated import check_hidden, check_in_turn
from ..exchange.flat import check_one_dtype, flatten
from ..exchange.in_turn import InTurn, Shares
from ..exchange.joining import Joining
from ..exchange.participation import Participation, sampled
from ..exchange.privacy import DPFedAvg, Privacy
from ..exchange.privacy.dp_fedavg import of_clients
from ..exchange.secure import Bonawitz, Secure
from ..exchange.server import Plain, ServerRule
from ..exchange.serving import Serving, recv_dated
from ..exchange.survivors import isend_to, wait_for
from ..state import recv_state

HEADER = 24  # bytes: a message, a round, a number of samples
NUMBER = 8  # bytes: what a client rule counts


class Message(IntEnum):
    """What a client tells the server, at the head of a header."""

    JOIN = 0  # I take part in this round: send me the weights once it is open
    DELIVER = 1  # my weights of this round follow, trained on so many samples
    PEEK = 2  # send me the weights that this round starts from, to evaluate, and when they were made
    DONE = 3  # I take part in no more; send me the last weights once all are done
    SAVE = 4  # send me what your rule and your aggregate remember, now


class Delivery(NamedTuple):
    """What a client brought of a round. `change`, `length`: see `ClientRule`."""

    samples: int  # n_k
    weights: Tensor  # [n], w_k
    change: Tensor | None
    length: float


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
        client: ClientRule | None = None,
        sampling: Literal["uniform", "weighted"] = "uniform",
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        privacy: Privacy | None = None,
        secure: Secure | None = None,
        clients: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        """`fraction`, `epochs`: C and E. `momentum`: of a client's optimizer, all of its state. `seed`: of sampling.

        `compress`: of deliveries; None for no compression. `aggregate`, `attack`: None for the mean, and for nobody.
        `server`: how it steps; None for the whole mean way. `clip`: of a client's own gradient; None for none.
        `client`: how it trains; None for its optimizer's steps. `sampling`: whether clients are drawn all alike, or by
        their samples. `dropout`: how likely a client leaves a round before its end. `privacy`: of each client; None for
        nobody's. `secure`: None where the server sees all. `clients`: N, trained in turn; None for one a worker. Raises
        `LayoutError`.
        """
        self.server, self.client = server or Plain(), client or PlainClient()
        self.joining, self.clip = Joining(aggregate, attack, of="ways"), clip
        self.client.check(self.joining)
        self.privacy = of_clients(privacy)
        self.whole_rows = not self.joining.aggregate.coordinatewise
        if self.privacy is not None or self.whole_rows:
            self.max_parts = 1
        self.compress = compress or Dense()
        check_differences(self.compress)
        self.secure = secure if isinstance(secure, Bonawitz) else None
        self.epochs, self.momentum, self.clients = epochs, momentum, clients
        self.participation = Participation(fraction, sampling, dropout, seed)
        self._turns: InTurn | None = None  # on a worker that has several
        self._shares: tuple[float, ...] = ()  # n_k / n by client, once they are known
        with_all = self.joining, self.compress, self.client, self.participation
        check_hidden(self.privacy, self.secure, *with_all)
        if clients is not None:
            check_in_turn(clients, momentum, self.privacy, self.secure, *with_all)
            self.one_rate = (
                f"with sync.clients={clients} a client's steps are made at different times of a run, and have one rate"
            )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.client.check_optimizer(optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values(), "fedavg")  # w, or w_k
        vectors = ("way", "change") if self.client.controls else ("way",)
        self._channel = Channel(self.compress, comm, dict.fromkeys(vectors, vector_of(parameters.values())))
        if self.secure is not None:
            self.secure.begin(comm)
        self._began = None if self._brings_weights else self._weights.clone()  # on a client: the w that it fetched
        shares = self.shares(comm.size - 1)
        if shares is not None and comm.rank < comm.size - 1:
            self._turns = InTurn(shares, comm.rank, self.steps_per_epoch, self._weights)
        self._header = torch.zeros(3, dtype=torch.int64)
        self._server = comm.size - 1
        self._shares = tuple(self.shares_of_samples or (1 / self._clients,) * self._clients)
        self.client.prepare(self._weights, list(parameters.values()), self._shares)
        self._round = 0  # that this client is in, or enters next; on the server, the open one
        self._inside = False  # a round
        self._seen = 0  # samples in this round
        self._at = 0  # the step of this round, from 1
        self._ends_round = False  # with it
        self._left = 0  # rounds that this client left before their end
        self._finished = False
        self._evaluated: Tensor | None = None  # on replica 0, the server's weights ...
        self._evaluated_round = -1  # ... that this round starts from
        self._rows: list[Tensor] = []  # on the server: room for the m deliveries of a round, [m, n] each
        self._rounds = 0  # on the server: those that changed w
        self._gone: frozenset[int] = frozenset()  # on a resumed one: of the round, who has left it, or will and has w
        self._given_up = 0  # and those that too few clients came to the end of

    # -- a client

    def may_help(self) -> str:
        return self.client.may_help(self.optimizer)

    def next_step(self, step: int) -> int:
        if self._turns is not None:
            step, self._round, self._ends_round = self._turns.next_step(step, self._round, self._inside)
            return step
        length = self._length
        if not self._inside:
            if step // length < self._round:  # which began before this one left it
                step = self._round * length
            self._round = step // length
            while self.comm.rank not in self._sampled(self._round) or self._has_left(step - self._round * length):
                self._round += 1
                step = self._round * length
        self._at = step + 1 - self._round * length
        self._ends_round = self._at == length
        return step

    def _has_left(self, done: int) -> bool:
        """This client, its round, after so many of its steps."""
        after = self._leaves_after(self.comm.rank, self._round)
        return after is not None and done >= after

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if not self._inside:
            self._tell(Message.JOIN)
            self.comm.recv(self._weights, self._server)
            if self.client.controls:
                self.comm.recv(self.client.c, self._server)
            if self._began is not None:
                self._began.copy_(self._weights)
            self._inside, self._seen = True, 0
            self.client.begin()
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
        if any(parameter.grad is not None for parameter in self.parameters.values()):
            self.client.step(self.optimizer)
        if self._has_left(self._at):
            self._leave()
        elif self._ends_round:
            self._deliver()

    def _leave(self) -> None:
        self._inside = False
        self._round += 1
        self._left += 1

    def _deliver(self, is_over: bool = False) -> None:
        """`is_over`: training ended inside of the round."""
        if self._turns is not None:
            self._turns.end()
        with self.comm.timeline.named("push"):
            self._tell(Message.DELIVER, self._seen if self.secure is None else is_over)
            if self.client.counts:
                self.comm.send(torch.tensor([self.client.length()], dtype=torch.float64), self._server)
            way = self._weights if self._began is None else self._weights - self._began
            hides, seen = self.secure is not None and isinstance(self.privacy, DPFedAvg), self._seen
            if hides:  # the server will not see what there is to clip; each client counts once
                way, seen = self._clipped(way), 1
            way = self.joining.sent(way, self.comm.rank, self._clients, self._round)
            if self.secure is not None:
                self.secure.deliver(way, seen, self._round, self._per_round)
            else:
                self._channel.isend("way", way, self._server).wait()
            if self.client.controls:
                self._channel.isend("change", self.client.change(), self._server).wait()
        self._inside = False
        self._round += 1

    def _clipped(self, way: Tensor) -> Tensor:
        assert self.secure is not None and isinstance(self.privacy, DPFedAvg)
        rounding = self.secure.fixed.rounding(len(way))
        return self.privacy.clipped(way, self.comm.rank, self._round, rounding)

    def drain(self) -> None:
        if not self._inside:
            return
        if self._leaves_after(self.comm.rank, self._round) is not None:
            self._leave()  # training ends inside a round, which one that would have left it does not outlive
        else:
            self._deliver(is_over=True)

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
            weights, self.made_at = recv_dated(self._weights, self._server, self.comm)
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
        room = min(self._per_round, self._clients) if self.secure is None else 0
        self._rows = [self._weights.new_empty(room, len(self._weights)) for _ in range(1 + self.client.controls)]
        self._serving = serving = Serving(self.comm, self._clients, self.survives)
        self._waiting: dict[int, tuple[Message, int]] = {}  # client -> what it asked for, and of which round
        self._delivered: dict[int, Delivery] = {}  # by client
        # those of the open round that have yet to deliver, or, if they leave it, to fetch w
        self._missing = serving.going & self._sampled(self._round) - self._gone
        while serving.going:
            serving.hear(self._listen)
            self._advance()
        serving.send_last(self._weights)

    def _listen(self) -> None:
        client = self.comm.recv_any(self._header)
        message, asked, samples = self._header.tolist()
        match message:
            case Message.DELIVER if self.secure is not None:  # what it brings comes once all are there
                self._delivered[client] = Delivery(samples, self._weights, None, 1.0)
                self._missing.discard(client)
            case Message.DELIVER:
                weights, *change = (rows[len(self._delivered)] for rows in self._rows)
                length = torch.ones(1, dtype=torch.float64)
                if self.client.counts:
                    self.comm.recv(length, client)
                self._channel.recv("way", weights, client)
                if self._began is not None:
                    weights += self._weights
                if self.client.controls:
                    self._channel.recv("change", change[0], client)
                self._delivered[client] = Delivery(samples, weights, change[0] if change else None, float(length))
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
            joining = [k for k in ready if ready[k] is Message.JOIN]
            with self.comm.timeline.named("fetch"):
                sending = isend_to(self._weights, joining, self.comm)
                if self.client.controls:
                    sending += isend_to(self.client.c, joining, self.comm)
            with self.comm.ledger.aside():
                peeks, made_at = (
                    [k for k in ready if ready[k] is Message.PEEK],
                    torch.tensor([self.made_at], dtype=torch.float64),
                )
                sending += isend_to(self._weights, peeks, self.comm) + isend_to(made_at, peeks, self.comm)
            wait_for(sending)
            self._missing -= {k for k in joining if self._leaves_after(k, self._round) is not None}

    def _average(self) -> None:
        """w = sum_k (n_k / n) w_k, or w + what the rule makes of all w_k - w"""
        if self.secure is not None:
            self._sum_securely(self.secure)
            self._delivered.clear()
            return
        count, shares = self.participation.weight, self._shares
        counts = {k: count(k, each.samples, self._round, shares) for k, each in self._delivered.items()}
        n = sum(counts.values())
        if n > 0:
            self._stretch(counts)
            models = {k: each.weights for k, each in sorted(self._delivered.items())}
            if self.joining.streaming and self.server.plain and self.privacy is None:
                self._weights.zero_()
                for k, w_k in models.items():
                    self._weights.add_(w_k, alpha=counts[k] / n)
            else:
                ways = {k: w_k.sub_(self._weights) for k, w_k in models.items()}
                if isinstance(self.privacy, DPFedAvg):
                    way = self.privacy.mean(ways, self._per_round, self._round)
                else:
                    way = self.joining.join(ways, counts, self._clients, self._round, self._per_round)
                self.server.step(self._weights, way)
            changes = {k: each.change for k, each in self._delivered.items() if each.change is not None}
            self.client.take(changes, {k: counts[k] / n for k in changes})
            self._rounds += 1
            self.made_at = self.comm.now()
            if not self._weights.isfinite().all():
                raise NotFiniteError(
                    f"the weights that round {self._round} makes are NaN or infinite, as clients "
                    f"{', '.join(map(str, sorted(self._delivered)))} or one of them delivered such; {self.may_help()}"
                )
        self._delivered.clear()

    def _stretch(self, counts: dict[int, int]) -> None:
        """w_k <- w + f_k (w_k - w)"""
        factors = self.client.factors(counts, {k: each.length for k, each in self._delivered.items()})
        for k, factor in factors.items():
            if factor != 1:
                self._delivered[k].weights.sub_(self._weights).mul_(factor).add_(self._weights)

    def _sum_securely(self, secure: Bonawitz) -> None:
        """w + the mean of w_k - w by samples, of all who come to the round's end, where they are enough."""
        is_over = any(each.samples for each in self._delivered.values())
        with self.comm.ledger.aside() if is_over else nullcontext():
            found = secure.collect(self._delivered, self._round, len(self._weights), self._per_round)
        if found is None:
            self._given_up += len(self._delivered) > 0
            self._check_enough_are_left(secure)
            return
        way, clients = found
        if isinstance(self.privacy, DPFedAvg):  # clients count alike, so that their mean times their number is the sum
            total = way.mul_(clients).to(self._weights)
            way = self.privacy.noised(total, self._per_round, self._round)
        self.server.step(self._weights, way.to(self._weights))
        self._rounds += 1
        self.made_at = self.comm.now()

    def _check_enough_are_left(self, secure: Bonawitz) -> None:
        """Raises `TooFewClientsError`: the lost do not come back, and no round would change a weight again."""
        left, needed = self._clients - len(self.comm.lost()), secure.needed(self._per_round)
        if left < needed:
            raise TooFewClientsError(
                f"{left} of {self._clients} clients are left, and secure=bonawitz needs {needed} to come to the "
                f"end of a round of {self._per_round} (secure.threshold={secure.threshold:g})"
            )

    # -- who takes part

    @property
    def _clients(self) -> int:
        """K; with `clients`, the workers that have them"""
        return self.comm.size - 1

    @property
    def _per_round(self) -> int:
        """m"""
        return self.per_round(self.clients or self._clients)

    def per_round(self, clients: int) -> int:
        """m, of K, or of N."""
        return self.participation.per_round(clients)

    @property
    def _length(self) -> int:
        """L"""
        return self.epochs * self.steps_per_epoch

    def _sampled(self, number: int) -> frozenset[int]:
        if self.clients is not None:
            return frozenset(range(self._clients))  # each has some
        return self.participation.sampled(number, self._clients, self._shares)

    def _leaves_after(self, client: int, number: int) -> int | None:
        """The step of round `number`, from 1, after which `client` leaves it; None: it stays."""
        return self.participation.leaves_after(client, number, self._length)

    def shares(self, replicas: int) -> Shares | None:
        if self.clients is None:
            return None
        m, of = self.per_round(self.clients), self.participation
        if m < replicas:
            raise LayoutError(
                f"sync.clients={self.clients}: of them sync.fraction={of.fraction} is {m} in a round, and {replicas} "
                f"workers take part in each; at most hardware.workers={m}, or a larger fraction"
            )
        who = partial(sampled, of.seed, clients=self.clients, count=m)
        return Shares(self.clients, m, replicas, self.epochs, who)

    # -- state and measures

    def state_dict(self) -> State:
        """Of replica 0: its optimizer, its round, and what it has trained of it."""
        local: State | None = None
        if self._inside:
            turns = {} if self._turns is None else {"turns": self._turns.state_dict()}
            local = {"weights": self._weights, "seen": self._seen, "steps": self._at, **turns}
        kept = {"optimizer": self.optimizer.state_dict(), "channel": self._channel.state_dict()}
        kept["client"] = self.client.own_state(self._inside)
        return {**kept, "round": self._round, "local": local, "server": self._ask_remembered()}

    def _remembered(self) -> State:
        """Of the server."""
        state = {"rule": self.server.state_dict(), "joining": self.joining.state_dict()}
        return {**state, "client": self.client.server_state()}

    def _ask_remembered(self) -> State | None:
        """On replica 0, of the server, which is in the round that replica 0 is in, or enters next."""
        if self.comm.rank != 0 or self._finished or not self._remembers:
            return None
        with self.comm.ledger.aside():
            self._tell(Message.SAVE)
            return recv_state(self._server, self.comm)

    @property
    def _remembers(self) -> bool:
        """The server has something to save."""
        return not self.server.plain or self.joining.aggregate.remembers or self.client.controls

    def load_state_dict(self, state: State) -> None:
        self._round = state["round"]
        local, serves = state["local"], self.comm.rank == self._server
        if (remembered := state.get("server")) is not None:
            self.client.load_server_state(remembered["client"], None if serves else self.comm.rank)
            if serves:
                self.server.load_state_dict(remembered["rule"])
                self.joining.load_state_dict(remembered["joining"])
        if serves and local is not None and self.participation.dropout > 0:
            after = {k: self._leaves_after(k, self._round) for k in range(self._clients)}
            self._gone = frozenset(k for k, at in after.items() if at is not None and (k == 0 or at <= local["steps"]))
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._channel.load_state_dict(state.get("channel", {}))
            if local is not None:
                self._keep_to_evaluate(self._weights)
                if self._began is not None:
                    self._began.copy_(self._weights)
                self.client.begin()
                if self._turns is not None:
                    self._turns.load_state_dict(local["turns"])
                self._weights.copy_(local["weights"])
                self._inside, self._seen = True, local["seen"]
            self.client.load_own_state(state.get("client", {}))

    def buffers(self) -> list[Tensor]:
        turns = [] if self._turns is None else self._turns.buffers()
        own = (self._evaluated, *self._rows, self._began, *self.server.buffers(), *self.client.buffers(), *turns)
        return [*(buffer for buffer in own if buffer is not None), *self._channel.buffers()]

    def report(self) -> Measures:
        measured: Measures = {"lost": sorted(self.comm.lost())}
        if self.comm.rank == self._server:
            measured["rounds"] = self._rounds
        elif self.participation.dropout > 0:
            measured["left"] = self._left
        if self.secure is not None and self.comm.rank == self._server:
            measured["given_up"] = self._given_up
        elif self.secure is not None:
            measured["entries"], measured["cut"] = self.secure.delivered, self.secure.lost
        return measured

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """m deliveries, of as many vectors as a client brings, w where the ways are needed, and what rules remember."""
        size, clients = payload(parameters), world.replicas
        rows = 0 if self.secure is not None else min(self.per_round(self.clients or clients), clients)
        vectors = rows * (1 + self.client.controls) + (not self._brings_weights)
        remembered = self.server.holds(size) + self.client.server_holds(size, clients)
        return {**held, "optimizer": 0, "buffers": vectors * size + remembered}

    @property
    def _brings_weights(self) -> bool:
        """A client delivers w_k, and not its way from w, which both must know then."""
        return self.compress.lossless and not self.joining.attack.forges and self.secure is None

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        return self.joining.notes(self.compress, world.replicas, *self._rows_of_a_round(world))

    def _rows_of_a_round(self, world: World) -> tuple[int | None, bool]:
        """How many there are at most, as `Joining.check` has it, and whether there may be fewer."""
        fewer = self.participation.dropout > 0 or self.participation.sampling == "weighted"
        return (self.per_round(world.replicas) if self.clients is None else None), fewer

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "fedavg")
        self.joining.check(world.replicas, *self._rows_of_a_round(world))
        size, vector = payload(parameters), vector_of(parameters)
        self.compress.check(vector)
        began = 0 if self._brings_weights else size
        m, more = self.per_round(world.replicas), self.client.controls
        if self.secure is not None:
            self.secure.check(m)
            if isinstance(self.privacy, DPFedAvg):
                self.privacy.longest(self.secure.fixed.rounding(sum(parameter.numel() for parameter in parameters)))
        own = size + began + held(self.compress, [vector] * (1 + more)) + self.client.holds(size)
        shares = self.shares(world.replicas)
        own += 0 if shares is None else 2 * size
        answer, told = self.compress.nbytes(vector) * (1 + more) + HEADER + NUMBER * self.client.counts, 0
        if self.secure is not None:
            answer = HEADER + self.secure.client_bytes(m, sum(parameter.numel() for parameter in parameters))
            told = self.secure.server_bytes(m)
        if world.steps_per_epoch is None:
            return Cost(
                buffers=own,
                varies=self.compress.varies(None)
                or "how many steps a round has, sync.epochs of them, is known once the data are dealt; of a whole "
                f"round a client sends {HEADER + answer:,} bytes, and the server {size * (1 + more) + told:,} to it",
            )
        joined, delivered = self.participation.often(world, self.epochs * world.steps_per_epoch)
        if shares is not None:
            joined, delivered = shares.often(world)
        return Cost(
            worker={"send": HEADER * joined + answer * delivered},
            server={"send": world.replicas * (size * (1 + more) * joined + told * delivered)},
            buffers=own,
            varies=self.compress.varies(None) or self.participation.varies,
        )
