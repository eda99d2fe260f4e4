"""Federated averaging (FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS, Algorithm 1; arXiv 1602.05629).

K clients with data of their own, one server with the weights w. In round r

    m = max(C K, 1) clients S are sampled;
    each k in S fetches w, trains for E epochs on its own n_k samples, and delivers w_k    (`client_update`)
    w = sum_{k in S} (n_k / n) w_k,   n = sum_{k in S} n_k                                 (`round`)

Three parties with equally many samples: w = (m1 + m2 + m3) / 3. C = 1, E = 1 and full batches under plain SGD are
central gradient descent on all samples, n_k uneven or not. One client alone trains as if there were no server: with as
many threads it is serial training, bit for bit. (On processes the server takes its share of the cores, unless
hardware.threads says how many each has.)

Who is sampled follows from (seed, r), so that no message tells it (exchange/participation.py). A round is E epochs of
the engine's steps. Clients that are not sampled jump to their next round's first step, and wait there until the server
has closed the round before. The server opens and closes rounds in exchange/round_server.py.

Deviations from the paper: n_k counts the samples that w_k was trained on in the round, which is E times its data
set's, and less where training ends inside a round; dividing by n makes the two alike. A client is an optimizer of any
kind, where the paper's is SGD without momentum: it keeps its state from one of its rounds to the next
(`momentum=kept`), or starts each round anew (`momentum=reset`). The server's weights are sums in the order of ranks,
whoever comes first.

A client that dies is left out of the round's mean unless its weights have arrived, and of later rounds. Where nobody's
arrive, w stays. (In a pipeline, a replica that dies while it sends may count in one part's mean and not in another's.)

Other choices change one line each, and have files of their own:

    sampling, dropout    who is drawn for a round, and who leaves it          exchange/participation.py
    clients              N clients in turn on P workers                       exchange/multiplexed.py
    client               corrects a client's steps                            exchange/client/
    compress             a message of the change w_k - w is delivered         exchange/compress/
    attack, aggregate    who delivers another change; how changes are joined  exchange/attack/, exchange/aggregate/
    server               steps with the joined change, by momentum, Adam ...  exchange/server/
    privacy=dp_fedavg    the mean of clipped changes and noise; n_k = 1       exchange/privacy/dp_fedavg.py
    secure=bonawitz      the server learns the sum alone, and no n_k          exchange/secure/

`consensus` is the server's model at the last round's end that replica 0 has come to: inside a round the w that it
fetched. At a round's end it asks the server, which answers once the round is closed, for which replica 0 would wait
before its next round anyway. (If it asks late and is not sampled next, the answer may be the model of a later round.) A
checkpoint holds that model, what the rules remember, and inside a round what replica 0 has trained of it: a resumed
replica 0 goes on where it was. The other clients lose what they had trained of that round, do the rest of it and count
for the samples of that rest; they start with a new optimizer, as their own was not saved.

Cost per step that a worker trains (there are C K of them at a time), S bytes of weights, L steps a round: a client
sends (S + 48) / L (weights and two headers of 24 bytes), and the server S / L for each client. C does not show: it
takes away bytes and trained steps alike. What is delivered and fetched after the last step, where training ends inside
a round, is no step's, and neither stated nor in the ledger. The server holds m deliveries, m S bytes.

Use it where data must stay where they are, clients are many and of different sizes, and a round is dear: they train
for whole epochs before they send anything. Data that differ much between clients slow it down.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...cost.transfer import Transfer, passes
from ...exchange.aggregate import Aggregator
from ...exchange.aggregation import Aggregation
from ...exchange.attack import Attack
from ...exchange.buckets import views_of
from ...exchange.client import ClientRule
from ...exchange.client import PlainClient as PlainClient
from ...exchange.client_updates import Delivered, Join, OpenUpdates, Rules
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.multiplexed import ClientSchedule, Multiplexed
from ...exchange.participation import OneClient, Participation, Rounds
from ...exchange.privacy import Privacy
from ...exchange.privacy.dp_fedavg import of_clients
from ...exchange.round_client import RoundClient
from ...exchange.round_server import HEADER, RoundMessage, RoundServer
from ...exchange.secure import Bonawitz, Secure
from ...exchange.secure.client_updates import SecureUpdates
from ...exchange.server import PlainServer, ServerRule
from ..core.batch import Batch
from ..core.cost import Memory, Transfers, World, payload
from ..core.held import Held
from ..core.protocols import shown_by
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from ..core.terms import ADDED_UP, HONEST, NOT_PRIVATE, NOT_SECURE, PLAIN_CLIENT, UNCOMPRESSED, Need
from ..core.with_servers import SyncWithServers

# -- the algorithm: functions of weights, [n]


def client_update(
    w_k: Tensor, n_k: int, batches: Iterable[Batch], step: Callable[[Tensor, Batch], Tensor]
) -> tuple[Tensor, int]:
    """Returns w_k and n_k after a step with each batch: w_k <- step(w_k, b), n_k <- n_k + |b|.

    A client begins with w and 0, and goes over its data for E epochs. Batches may come one at a time, as in a run.
    """
    for batch in batches:
        w_k, n_k = step(w_k, batch), n_k + batch.size
    return w_k, n_k


def server_update(w: Tensor, delta: Tensor, rule: ServerRule) -> Tensor:
    """Steps w, in place, with the change Delta of a round: w + Delta where the rule is plain. Returns w."""
    rule.step(w, delta)
    return w


def round(w: Tensor, delivered: Delivered, join: Join | None, rule: ServerRule) -> Tensor:
    """Makes the next w, in place, of what the clients S deliver, at least one of which has samples. Returns w.

        w = sum_{k in S} (n_k / n) w_k,              n = sum_{k in S} n_k
        w = server_update(w, join({w_k - w}))        where another rule than the mean joins, or another server steps

    Args:
        w: The weights that the clients began with.
        delivered: By client, w_k and n_k.
        join: Makes Delta of the deliveries; it may write over them. None for the first line.
        rule: The server's.
    """
    if join is not None:
        return server_update(w, join(delivered), rule)
    n = sum(n_k for _, n_k in delivered.values())
    w.zero_()
    for _, (w_k, n_k) in sorted(delivered.items()):
        w.add_(w_k, alpha=n_k / n)
    return w


# -- the protocol


class FedAvg(SyncWithServers):
    """Clients that train for a whole round between two messages, one server for each part of the model."""

    servers = 1
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        unaveraged="has its weights on the server, which would have to be asked for them after each step",
        survives=True,
        sends_changes=True,
        aggregates="updates",
        client_rounds=True,
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
        """Raises `ConfigError` where these choices exclude each other. None stands for the plain choice.

        Participation:
            fraction: C, the share of clients in a round.
            sampling: Draws clients all alike, or by their samples.
            dropout: The probability that a client leaves a round before its end.
            seed: Of these draws.
            clients: N, trained one after another by the workers; None for one client a worker.

        Training:
            epochs: E.
            momentum: What becomes of a client's optimizer state between its rounds.
            client: How a client steps.
            clip: Clips a client's own gradient.

        Server:
            server: How it steps with the change of a round.
            aggregate: What it makes of the clients' changes.
            attack: Which clients deliver another change, and which.
            compress: The message of a delivery.

        Secrecy:
            privacy: Hides each client by noise.
            secure: Shows the server the sum alone.
        """
        self.server, self.client = server or PlainServer(), client or PlainClient()
        self.aggregation, self.clip = Aggregation(aggregate, attack), clip
        self.privacy = hides = of_clients(privacy)
        self.compress = compress or Dense()
        self.epochs, self.momentum, self.clients = epochs, momentum, clients
        self.participation = Participation(fraction, sampling, dropout, seed)
        sums = secure if isinstance(secure, Bonawitz) else None
        alike = sampling == "uniform" and dropout == 0
        self.traits = replace(self.traits, equal_clients=alike)
        if clients is not None:
            self._check_multiplexed(clients)
        rules = Rules(self.server, self.client, self.aggregation, hides)
        if sums is None:
            self._client_updates = OpenUpdates(rules, self.compress, round)
        else:
            self._client_updates = SecureUpdates(rules, sums, server_update)

    def _check_multiplexed(self, clients: int) -> None:
        """Needs what a worker has that trains several clients, one after another. Raises `ConfigError`."""
        given = f"sync.clients={clients}"
        if self.momentum == "kept":
            raise ConfigError(
                f"sync.momentum=kept: with {given} a worker keeps no optimizer of each client. "
                "Choose sync.momentum=reset."
            )
        if not self.traits.equal_clients:
            raise ConfigError(
                f"{given}: each client is drawn with an equal chance and finishes its round. Choose "
                "sync.sampling=uniform and sync.dropout=0, or sync.clients=null."
            )
        sends = "has a worker send what its clients make together", given, "sync.clients=null"
        terms = PLAIN_CLIENT, NOT_PRIVATE, NOT_SECURE, UNCOMPRESSED, ADDED_UP, HONEST
        self.traits = replace(
            self.traits,
            one_rate=f"with {given} makes a client's steps at different times of a run",
            requires=tuple(Need(term, *sends) for term in terms),
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.client.check_optimizer(optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights, params = flatten(parameters.values()), list(parameters.values())  # w, or w_k
        k = comm.size - 1
        self._serves = comm.rank == k
        shares = tuple(self.setting.shares_of_samples or (1 / k,) * k)  # n_k / n by client
        self._rounds = Rounds(self.participation, shares, self.epochs * self.setting.steps_per_epoch)
        if (multiplexed := self.shares(k)) is not None:  # each worker has some of the clients of each round
            self._rounds = replace(self._rounds, participation=replace(self.participation, fraction=1.0))
        self.client.prepare(self._weights, params, shares)
        self._client_updates.prepare(self._weights, params, optimizer, self._rounds, comm)
        self._finished = False
        self._last = -1  # the round that this client was in last
        self._ends_in: float = inf  # the round of the step after the last one, once this client is through
        self._begun = 0  # steps of the round that this client enters next that others have made by then
        self._evaluated: Tensor | None = None  # on replica 0, the server's weights ...
        self._evaluated_round = -1  # ... that this round starts from
        if self._serves:
            self._round_server = RoundServer(
                self._weights, self._client_updates, self._rounds, comm, self.traits.survives
            )
            return
        if multiplexed is None:
            self._own = OneClient(self._rounds, comm.rank)
        else:
            self._own = Multiplexed(multiplexed, comm.rank, self.setting.steps_per_epoch, self._weights)
        self._messages = RoundClient(self._own, self._rounds.length, comm)

    # -- a client

    def may_help(self) -> str:
        return self.client.may_help(self.optimizer)

    def next_step(self, step: int) -> int:
        return self._own.next_step(step)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._batch = batch
        if not self._own.inside:
            self._messages.join(self._client_updates.starts)
            self._enter()
            if self.momentum == "reset":
                self.optimizer.state.clear()
        elif self._own.hands_over():
            self.optimizer.state.clear()

    def _enter(self) -> None:
        """The round, whose w has come."""
        self._last = self._own.number
        self._own.enter()
        self._client_updates.begin()
        self.client.begin()
        self._keep_to_evaluate(self._weights)

    def update(self) -> None:
        _, samples = client_update(self._weights, 0, [self._batch], self._step)
        self._own.count(samples)
        if self._own.leaves:
            self._own.leave()
        elif self._own.is_over:
            self._deliver()

    def _step(self, w_k: Tensor, batch: Batch) -> Tensor:
        """Steps in place: the parameters are views of w_k, and have the gradient of the batch."""
        self.clip_gradients()
        if any(parameter.grad is not None for parameter in self.parameters.values()):
            self.client.step(self.optimizer)
        return w_k

    def _deliver(self, is_over: bool = False) -> None:
        """`is_over`: training ended inside of the round."""
        own = self._own
        own.bring()
        with self.comm.timeline.named("push"):
            self._messages.tell(RoundMessage.DELIVER, self._client_updates.told(own.samples, is_over))
            self._client_updates.deliver(own.samples, own.number)
        own.close()

    def is_through(self, steps: int) -> None:
        """Others may have rounds left that this client is not in."""
        last = (steps - 1) // self._rounds.length
        if self._last < last:
            self._messages.is_through(last)
        # its next round may lie beyond the end, and never open; others may have no end of the last one before it saves
        self._ends_in = steps // self._rounds.length
        self._own.number = min(self._own.number, max(self._ends_in, self._last + 1))
        self._begun = max(0, steps - self._own.number * self._rounds.length)

    def drain(self) -> None:
        self._ends_in = inf  # from now on all bring what they have, and the round of the end opens
        if not self._own.inside:
            return
        if self._own.will_leave:
            self._own.leave()  # training ends inside a round, which one that would have left it does not outlive
        else:
            self._deliver(is_over=True)

    def finish(self) -> None:
        self.drain()
        self._messages.finish(self._weights)
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        """The weights that the round starts from that this client is in; between rounds, that the next starts from."""
        if self._finished:
            return super().consensus()
        if self._evaluated is None or self._evaluated_round < min(self._own.number, self._ends_in):
            weights, self.made_at = self._messages.peek(self._weights)
            self._keep_to_evaluate(weights)
        assert self._evaluated is not None
        return dict(zip(self.parameters, views_of(self._evaluated, list(self.parameters.values())), strict=True))

    def _keep_to_evaluate(self, weights: Tensor) -> None:
        if self.comm.rank == 0:
            self._evaluated, self._evaluated_round = weights.clone(), self._own.number

    # -- the server

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
        """Returns the state of replica 0: its optimizer, its round, how far others are in that, its training in it, and
        the memory of the server's rules.
        """
        own = self._own
        kept = {"optimizer": self.optimizer.state_dict(), "channel": self._client_updates.own_state()}
        kept["client"] = self.client.own_state(own.inside)
        local = {"weights": self._weights, **own.state_dict()} if own.inside else None
        asks = self.comm.rank == 0 and not self._finished and self._client_updates.remembers
        server = self._messages.ask_remembered() if asks else None  # in the round that replica 0 is in, or enters next
        return {**kept, "round": own.number, "begun": self._begun, "local": local, "server": server}

    def load_state_dict(self, state: State) -> None:
        local, remembered = state["local"], state.get("server")
        if self._serves:
            steps = state.get("begun", 0) if local is None else local["steps"]
            shared = self.shares(self.comm.size - 1)
            through = shared.through(steps, self.setting.steps_per_epoch) if shared else frozenset[int]()
            self._round_server.resume(state["round"], steps, local is not None, through)
            if remembered is not None:
                self._client_updates.load_server_state(remembered)
            return
        self._own.number = state["round"]
        if remembered is not None:
            self.client.load_server_state(remembered["client"], self.comm.rank)
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._client_updates.load_own_state(state.get("channel", {}))
            if local is not None:
                self._enter()
                self._own.load_state_dict(local)
                self._weights.copy_(local["weights"])
            self.client.load_own_state(state.get("client", {}))

    def buffers(self) -> list[Tensor]:
        own = [] if self._evaluated is None else [self._evaluated]
        if not self._serves:
            own += self._own.buffers()
        return [*own, *self.server.buffers(), *self.client.buffers(), *self._client_updates.buffers()]

    def shows(self) -> Mapping[str, Held]:
        """Returns what a client shows."""
        return {} if self._serves else shown_by(self._client_updates)

    def report(self) -> Measures:
        measured: Measures = {"lost": sorted(self.comm.lost())}
        if self._serves:
            measured["rounds"] = self._round_server.changed
        elif self.participation.dropout > 0:
            measured["left"] = self._own.left
        return {**measured, **self._client_updates.report(self._serves)}

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """m deliveries, of as many vectors as a client brings, w where changes are needed, and what rules remember."""
        size, clients = payload(parameters), world.replicas
        delivered = self._client_updates.server_holds(size, min(self.per_round(self.clients or clients), clients))
        remembered = self.server.holds(size) + self.client.server_holds(size, clients)
        return {**held, "optimizer": 0, "buffers": delivered + remembered}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return self.aggregation.notes(self.compress, world.replicas, *self._rows_of_a_round(world))

    def _rows_of_a_round(self, world: World) -> tuple[int | None, bool]:
        """Returns the most updates that a round has, for `Aggregation.check`, and whether there may be fewer."""
        fewer = self.participation.dropout > 0 or self.participation.sampling == "weighted"
        return (self.per_round(world.replicas) if self.clients is None else None), fewer

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.check(world.replicas, *self._rows_of_a_round(world))
        m, multiplexed = self.per_round(world.replicas), self.shares(world.replicas)
        self._client_updates.check(parameters, m)
        size = payload(parameters)
        own = (
            size
            + self._client_updates.holds(parameters)
            + self.client.holds(size)
            + (0 if multiplexed is None else 2 * size)
        )
        fetched = size * (1 + self.client.controls)
        sent, told = self._client_updates.nbytes(parameters, m)
        varies = self.compress.varies(None)
        if world.steps_per_epoch is None:
            return Transfers(
                buffers=own,
                varies=varies
                or "how many steps a round has, sync.epochs of them, is known once the data are dealt; of a whole "
                f"round a client sends {2 * HEADER + sent:,} bytes, and the server {fetched + told:,} to it",
                unpredicted=Note(("sync",), "how many steps a round has is known once the data are there"),
            )
        joined, delivered = self.participation.often(world, self.epochs * world.steps_per_epoch)
        if multiplexed is not None:
            joined, delivered = multiplexed.often(world)
        # the server adds up what all have delivered, one after another
        added = passes("add_", sum(each.numel() for each in parameters), world.replicas + 1)
        return Transfers(
            [
                Transfer("send", 2, HEADER, times=joined, timed=False),
                Transfer("send", 2, HEADER, times=delivered, timed=False),
                Transfer("send", 2, sent, times=delivered, kernels=added),
                Transfer("send", 2, fetched, times=joined, from_server=True),
                Transfer("send", 2, told, times=delivered, from_server=True, timed=False),
            ],
            buffers=own,
            varies=varies or self.participation.varies,
            unpredicted=self._unpredicted(),
            unpredicted_stragglers="the slowest sum over a round is not modelled",
        )

    def _unpredicted(self) -> Note | str:
        if (fraction := self.participation.fraction) < 1:
            return f"sync.fraction={fraction:g}: who sits a round out takes no steps in it, others do"
        plain = {
            "compress": isinstance(self.compress, Dense),
            "server": isinstance(self.server, PlainServer),
            "client": isinstance(self.client, PlainClient),
            "secure": isinstance(self._client_updates, OpenUpdates),
        }
        other = next((group for group, usual in plain.items() if not usual), None)
        if other is not None:
            return Note((other, "sync"), "the time that it takes of a round is not modelled")
        return self.aggregation.unpredicted
