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
has closed the round before. This file has what a client does; the server opens and closes rounds in
exchange/round_server.py, and makes the next w in exchange/deliveries.py.

Deviations from the paper: n_k counts the samples that w_k was trained on in the round, which is E times its data
set's, and less where training ends inside a round; dividing by n makes the two alike. A client is an optimizer of any
kind, where the paper's is SGD without momentum: it keeps its state from one of its rounds to the next
(`momentum=kept`), or starts each round anew (`momentum=reset`). The server's weights are sums in the order of ranks,
whoever comes first.

A client that dies is left out of the round's mean unless its weights have arrived, and of later rounds. Where nobody's
arrive, w stays. (In a pipeline, a replica that dies while it sends may count in one part's mean and not in another's.)

With `sampling=weighted` the m clients of a round are drawn by their share n_k / n of all samples, with replacement, and
their mean is plain, one that was drawn twice counting twice (Li et al. 2020, "On the Convergence of FedAvg on Non-IID
Data", ICLR, scheme I; arXiv 1907.02189). So a client counts as much as it has samples, on average over rounds.

With `dropout=p` a client that was sampled leaves the round with probability p, after one of its L steps, each as likely
as another. What it has trained is lost, but for its optimizer's state; the round's mean is of those that deliver, and
where nobody does, w stays. Who leaves follows from (seed, r, k).

With `clients` = N there are more clients than workers: the data are dealt to N, of whom m = max(C N, 1) take part in a
round. Each of the P workers trains some of these, one after another, from w and with a new optimizer each
(exchange/in_turn.py). That is Algorithm 1 of N clients but for the order of sums, and sends what P clients send. A
worker that dies takes its clients of that round with it, and of later rounds those that would be its own.

Other choices change one line each, and have files of their own. With `compress` a client delivers the message of its
change in the round, w_k - w, of which the server makes w_k again; w goes to clients whole. With a `client` rule clients
correct their steps, and deliver something beside their weights. With a `server` rule the server steps with the mean
change sum_k (n_k / n) (w_k - w), by momentum, Adagrad, Adam or Yogi; with an `aggregate` other than the mean, with the
change that the rule makes of the clients' changes; with `privacy=dp_fedavg`, with the mean of clipped changes and
noise, where n_k count no more. With `secure=bonawitz` it learns the sum of the changes, and neither one of them nor
n_k. With an `attack` some clients deliver another change than theirs.

`consensus` is the server's model at the last round's end that replica 0 has come to: inside a round that is the w that
it fetched. At a round's end it asks the server, which answers when the round is closed; that disturbs nobody, as
replica 0 would wait for the same before its next round. (If it asks late and is not sampled next, the answer may be
the model of a later round.) A checkpoint holds that model and, inside a round, what replica 0 has trained of it, and
what the rules remember, which the server is asked for: a resumed replica 0 goes on where it was; the other clients lose
what they had trained of that round, do the rest of it and count for the samples of that rest; and they start with a new
optimizer, as their own was not saved.

Cost per step that a worker trains (there are C K of them at a time), S bytes of weights, L steps a round: a client
sends (S + 48) / L (weights and two headers of 24 bytes), and the server S / L for each client. C does not show: it
takes away bytes and trained steps alike. What is delivered and fetched after the last step, where training ends inside
a round, is no step's, and neither stated nor in the ledger. The server holds m deliveries, m S bytes.

Use it where data must stay where they are, clients are many and of different sizes, and a round is dear: they train
for whole epochs before they send anything. Data that differ much between clients slow it down.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.aggregate import Aggregator
from ...exchange.attack import Attack
from ...exchange.buckets import views_of
from ...exchange.channel import check_differences
from ...exchange.client import ClientRule
from ...exchange.client import PlainClient as PlainClient
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense
from ...exchange.deliveries import OpenDeliveries, Rules
from ...exchange.federated import check_hidden, check_in_turn
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.in_turn import ClientSchedule, InTurn
from ...exchange.joining import Joining
from ...exchange.participation import OneClient, Participation, Rounds
from ...exchange.privacy import Privacy
from ...exchange.privacy.dp_fedavg import of_clients
from ...exchange.round_server import HEADER, NEVER, RoundMessage, RoundServer
from ...exchange.secure import Bonawitz, Secure
from ...exchange.secure.deliveries import SecureDeliveries
from ...exchange.server import PlainServer, ServerRule
from ...exchange.serving import recv_dated
from ..core.batch import Batch
from ..core.cost import Cost, Memory, World, payload
from ..core.state import State, recv_state
from ..core.sync import Measures, StoppedBefore, Sync, SyncTraits


class FedAvg(Sync):
    """Clients that train for a whole round between two messages, one server for each part of the model."""

    servers = 1
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        unaveraged="has its weights on the server, which would have to be asked for them after each step",
        survives=True,
        server_stops=True,
    )

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
        `server`: how it steps; None for the whole mean change. `clip`: of a client's own gradient; None for none.
        `client`: how it trains; None for its optimizer's steps. `sampling`: whether clients are drawn all alike, or by
        their samples. `dropout`: how likely a client leaves a round before its end. `privacy`: of each client; None for
        nobody's. `secure`: None where the server sees all. `clients`: N, trained in turn; None for one a worker. Raises
        `ConfigError`.
        """
        self.server, self.client = server or PlainServer(), client or PlainClient()
        self.joining, self.clip = Joining(aggregate, attack, of="ways"), clip
        self.client.check(self.joining)
        self.privacy = hides = of_clients(privacy)
        whole = self.privacy is not None or self.joining.whole_rows
        self.traits = replace(
            self.traits, whole_rows=self.joining.whole_rows, max_parts=1 if whole else self.traits.max_parts
        )
        self.compress = compress or Dense()
        check_differences(self.compress)
        self.epochs, self.momentum, self.clients = epochs, momentum, clients
        self.participation = Participation(fraction, sampling, dropout, seed)
        sums = secure if isinstance(secure, Bonawitz) else None
        with_all = self.joining, self.compress, self.client, self.participation
        check_hidden(hides, sums, *with_all)
        if clients is not None:
            check_in_turn(clients, momentum, hides, sums, *with_all)
            self.traits = replace(
                self.traits,
                one_rate=f"with sync.clients={clients} a client's steps are made at different times of a run, and have "
                "one rate",
            )
        rules = Rules(self.server, self.client, self.joining, hides)
        self._deliveries = OpenDeliveries(rules, self.compress) if sums is None else SecureDeliveries(rules, sums)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.client.check_optimizer(optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights, params = flatten(parameters.values(), "fedavg"), list(parameters.values())  # w, or w_k
        self._server = k = comm.size - 1
        shares = tuple(self.setting.shares_of_samples or (1 / k,) * k)  # n_k / n by client
        self._rounds = Rounds(self.participation, shares, self.epochs * self.setting.steps_per_epoch)
        if (in_turn := self.shares(k)) is not None:  # each worker has some of the clients of each round
            self._rounds = replace(self._rounds, participation=replace(self.participation, fraction=1.0))
        self.client.prepare(self._weights, params, shares)
        self._deliveries.prepare(self._weights, params, optimizer, self._rounds, comm)
        self._header = torch.zeros(3, dtype=torch.int64)
        self._finished = False
        self._last = -1  # the round that this client was in last
        self._evaluated: Tensor | None = None  # on replica 0, the server's weights ...
        self._evaluated_round = -1  # ... that this round starts from
        if comm.rank == self._server:
            self._round_server = RoundServer(self._weights, self._deliveries, self._rounds, comm, self.traits.survives)
        elif in_turn is None:
            self._own = OneClient(self._rounds, comm.rank)
        else:
            self._own = InTurn(in_turn, comm.rank, self.setting.steps_per_epoch, self._weights)

    # -- a client: ClientUpdate

    def may_help(self) -> str:
        return self.client.may_help(self.optimizer)

    def next_step(self, step: int) -> int:
        return self._own.next_step(step)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if not self._own.inside:
            self._fetch()
        elif self._own.hands_over():
            self.optimizer.state.clear()
        self._own.count(batch.size)

    def _fetch(self) -> None:
        self._tell(RoundMessage.JOIN)
        self._hear_of_end(self._own.number)
        for vector in self._deliveries.starts:
            self.comm.recv(vector, self._server)
        self._enter()
        if self.momentum == "reset":
            self.optimizer.state.clear()

    def _hear_of_end(self, number: int) -> None:
        """Raises `StoppedBefore` where this round, or an earlier one, is not made any more."""
        before = torch.zeros(1, dtype=torch.int64)
        with self.comm.ledger.aside():
            self.comm.recv(before, self._server)
        if NEVER < int(before) <= number:
            self._own.number = int(before)
            raise StoppedBefore(int(before) * self._rounds.length)

    def _enter(self) -> None:
        """The round, whose w has come."""
        self._last = self._own.number
        self._own.enter()
        self._deliveries.begin()
        self.client.begin()
        self._keep_to_evaluate(self._weights)

    def update(self) -> None:
        self.clip_gradients()
        if any(parameter.grad is not None for parameter in self.parameters.values()):
            self.client.step(self.optimizer)
        if self._own.leaves:
            self._own.leave()
        elif self._own.is_over:
            self._deliver()

    def _deliver(self, is_over: bool = False) -> None:
        """`is_over`: training ended inside of the round."""
        own = self._own
        own.bring()
        with self.comm.timeline.named("push"):
            self._tell(RoundMessage.DELIVER, self._deliveries.told(own.samples, is_over))
            self._deliveries.deliver(own.samples, own.number)
        own.close()

    def is_through(self, steps: int) -> None:
        """Others may have rounds left that this client is not in."""
        last = (steps - 1) // self._rounds.length
        if self._last < last:
            with self.comm.ledger.aside():
                self._tell(RoundMessage.THROUGH, number=last)
            self._hear_of_end(last)

    def drain(self) -> None:
        if not self._own.inside:
            return
        if self._own.will_leave:
            self._own.leave()  # training ends inside a round, which one that would have left it does not outlive
        else:
            self._deliver(is_over=True)

    def finish(self) -> None:
        self.drain()
        self._tell(RoundMessage.DONE)
        self.comm.recv(self._weights, self._server)
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        """The weights that the round starts from that this client is in; between rounds, that the next starts from."""
        if self._finished:
            return super().consensus()
        if self._evaluated is None or self._evaluated_round < self._own.number:
            self._tell(RoundMessage.PEEK)
            weights, self.made_at = recv_dated(self._weights, self._server, self.comm)
            self._keep_to_evaluate(weights)
        assert self._evaluated is not None
        return dict(zip(self.parameters, views_of(self._evaluated, list(self.parameters.values())), strict=True))

    def _keep_to_evaluate(self, weights: Tensor) -> None:
        if self.comm.rank == 0:
            self._evaluated, self._evaluated_round = weights.clone(), self._own.number

    def _tell(self, message: RoundMessage, told: int = 0, number: int | None = None) -> None:
        """`number`: of a round; None for this client's own."""
        self._header.copy_(torch.tensor([message, self._own.number if number is None else number, told]))
        self.comm.send(self._header, self._server)

    # -- the server: see exchange/round_server.py

    def serve(self) -> None:
        self._round_server.serve(self.setting.stops_before)
        self.made_at = self._round_server.made_at

    # -- who takes part

    def per_round(self, clients: int) -> int:
        """m, of K, or of N."""
        return self.participation.per_round(clients)

    def shares(self, replicas: int) -> ClientSchedule | None:
        return (
            None if self.clients is None else ClientSchedule.of(self.participation, self.clients, replicas, self.epochs)
        )

    # -- state and measures

    def state_dict(self) -> State:
        """Of replica 0: its optimizer, its round, and what it has trained of it."""
        own = self._own
        kept = {"optimizer": self.optimizer.state_dict(), "channel": self._deliveries.own_state()}
        kept["client"] = self.client.own_state(own.inside)
        local = {"weights": self._weights, **own.state_dict()} if own.inside else None
        return {**kept, "round": own.number, "local": local, "server": self._ask_remembered()}

    def _ask_remembered(self) -> State | None:
        """On replica 0, of the server, which is in the round that replica 0 is in, or enters next."""
        if self.comm.rank != 0 or self._finished or not self._deliveries.remembers:
            return None
        with self.comm.ledger.aside():
            self._tell(RoundMessage.SAVE)
            return recv_state(self._server, self.comm)

    def load_state_dict(self, state: State) -> None:
        local, remembered = state["local"], state.get("server")
        if self.comm.rank == self._server:
            self._round_server.resume(state["round"], None if local is None else local["steps"])
            if remembered is not None:
                self._deliveries.load_server_state(remembered)
            return
        self._own.number = state["round"]
        if remembered is not None:
            self.client.load_server_state(remembered["client"], self.comm.rank)
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._deliveries.load_own_state(state.get("channel", {}))
            if local is not None:
                self._enter()
                self._own.load_state_dict(local)
                self._weights.copy_(local["weights"])
            self.client.load_own_state(state.get("client", {}))

    def buffers(self) -> list[Tensor]:
        own = [] if self._evaluated is None else [self._evaluated]
        if self.comm.rank != self._server:
            own += self._own.buffers()
        return [*own, *self.server.buffers(), *self.client.buffers(), *self._deliveries.buffers()]

    def report(self) -> Measures:
        serves = self.comm.rank == self._server
        measured: Measures = {"lost": sorted(self.comm.lost())}
        if serves:
            measured["rounds"] = self._round_server.changed
        elif self.participation.dropout > 0:
            measured["left"] = self._own.left
        return {**measured, **self._deliveries.report(serves)}

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """m deliveries, of as many vectors as a client brings, w where changes are needed, and what rules remember."""
        size, clients = payload(parameters), world.replicas
        delivered = self._deliveries.server_holds(size, min(self.per_round(self.clients or clients), clients))
        remembered = self.server.holds(size) + self.client.server_holds(size, clients)
        return {**held, "optimizer": 0, "buffers": delivered + remembered}

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        return self.joining.notes(self.compress, world.replicas, *self._rows_of_a_round(world))

    def _rows_of_a_round(self, world: World) -> tuple[int | None, bool]:
        """How many there are at most, as `Joining.check` has it, and whether there may be fewer."""
        fewer = self.participation.dropout > 0 or self.participation.sampling == "weighted"
        return (self.per_round(world.replicas) if self.clients is None else None), fewer

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "fedavg")
        self.joining.check(world.replicas, *self._rows_of_a_round(world))
        m, in_turn = self.per_round(world.replicas), self.shares(world.replicas)
        self._deliveries.check(parameters, m)
        size = payload(parameters)
        own = size + self._deliveries.holds(parameters) + self.client.holds(size) + (0 if in_turn is None else 2 * size)
        fetched = size * (1 + self.client.controls)
        sent, told = self._deliveries.nbytes(parameters, m)
        varies = self.compress.varies(None)
        if world.steps_per_epoch is None:
            return Cost(
                buffers=own,
                varies=varies
                or "how many steps a round has, sync.epochs of them, is known once the data are dealt; of a whole "
                f"round a client sends {2 * HEADER + sent:,} bytes, and the server {fetched + told:,} to it",
            )
        joined, delivered = self.participation.often(world, self.epochs * world.steps_per_epoch)
        if in_turn is not None:
            joined, delivered = in_turn.often(world)
        return Cost(
            worker={"send": HEADER * joined + (HEADER + sent) * delivered},
            server={"send": world.replicas * (fetched * joined + told * delivered)},
            buffers=own,
            varies=varies or self.participation.varies,
        )
