"""Gossip training: workers mix their weights with those of a few neighbours (D-PSGD: Lian et al. 2017, "Can
Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS, Algorithm 1; arXiv 1705.09056).

In every step each worker i takes a step of its own, W_i <- step(W_i, g_i(W_i)), and then, every `period` steps,

    W_i <- sum_j a_ij W_j

with the doubly stochastic a of a communication graph: see exchange/topology.py. So mixing conserves the mean of all W_i
and never raises their variance about it: a round leaves lambda_2^2 of it at most, lambda_2 the second largest singular
value of that round's a (on a ring of n > 2: 1/3 + 2/3 cos(2 pi / n)). Of n = 2^k workers, k rounds of the one-peer
exponential graph make the exact mean.

Deviations from the paper: it mixes while it computes the gradient, W_i <- sum_j a_ij W_j - eta g_i(W_i); here the step
is mixed too (adapt, then combine), which takes any optimizer. Its state (momentum) stays a worker's own.

A neighbour j that is dead is replaced by the worker itself, a_ii <- a_ii + a_ij, from the round on in which it sends no
more. Among the living a then stays row stochastic; in symmetric graphs (ring, matching) doubly, so that their mean is
conserved, but for the very round in which j died after it had sent to some and not to others.

*CHOCO-SGD* (Koloskova, Stich, Jaggi 2019, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication", ICML, Algorithm 2; arXiv 1902.00340), with `compress`: what is sent is the message q_i = C(W_i - X_i) of
how far a worker has come from X_i, which is what its neighbours know of it,

    X_j <- X_j + q_j  for j = i and each neighbour,      W_i <- W_i + gamma sum_j a_ij (X_j - X_i).

What a message leaves out is still there in W_i - X_i and is sent later: error feedback is not needed, and not used.
gamma is `consensus_step`: 1 and C(x) = x is the plain rule; the more C leaves out, the smaller it must be. The mean of
all W_i is conserved as before. It takes a graph that stays as it is. (In the paper X begins at 0; here all X_i begin at
the weights of worker 0.)

With an `attack` some workers send other weights than theirs. With an `aggregate` other than the mean each worker adds
what the rule makes of the differences of its neighbours' weights from its own, its own row, zero, among them
(`aggregate=self_centered_clipping` is the one made for this; exchange/aggregation.py):

    W_i <- W_i + rule(0, {W_j - W_i}).

Those who collude know what the worker that they lie to has of honest neighbours. The bound holds for the rows that one
worker aggregates: 3 on a ring, 1 + ceil(log2 n) on the exponential graph.

The consensus is the mean over the living replicas, without those that lie. One worker sends nothing and is serial
training, bit for bit.

Cost per step, S bytes of weights, or of their message: a worker sends |to| S / period; |to| is min(2, n - 1) on a
ring, ceil(log2 n) on the exponential graph, 1 on the one-peer one, and (n - n mod 2) / n for a random matching (the
mean over workers). A rule other than the mean keeps all rows, (1 + |of|) S of memory.

Use it where no link may carry more than a few messages a step, with many replicas or a network without a fast core:
time does not grow with their number. `gossip_exponential` mixes the fastest with one message a step; `gossip` keeps
to neighbours on a ring, which suits its wires; `gossip_matching` needs pairs alone, and mixes in expectation.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, PeerLostError
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...exchange.aggregate import Aggregator
from ...exchange.aggregation import Aggregation
from ...exchange.attack import Attack
from ...exchange.channel import Channel
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.flat import as_bytes, check_one_dtype, flatten
from ...exchange.survivors import isend_to, mean_of_living, mix, recv_from, wait_for
from ...exchange.topology import Topology, neighbours, to_neighbours
from ..core.batch import Batch
from ..core.cost import Transfers, World, payload
from ..core.local_steps import LocalSteps
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from ..core.terms import ADDED_UP, HONEST, UNCOMPRESSED, Need
from .mean_of_replicas import MeanOfReplicas

STAYS = ("ring", "exponential")  # topologies whose neighbours stay the same


class Gossip(MeanOfReplicas, LocalSteps):
    """Replicas step together and differ."""

    traits = SyncTraits(weights_agree=False, averages="own", survives=True, sends_changes=True, aggregates="neighbours")

    def __init__(
        self,
        topology: Literal["ring", "exponential", "one_peer_exponential", "matching"] = "ring",
        period: Annotated[int, Ge(1)] = 1,
        seed: Annotated[int, Ge(0)] = 0,
        consensus_step: Annotated[float, Gt(0), Le(1)] = 1.0,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`period`: steps between two rounds of mixing. `seed`: of the matchings. `consensus_step`: gamma, with
        `compress`; None for no compression. `aggregate`, `attack`: None for the mean, and for nobody. `clip`: of a
        replica's own gradient; None for none.

        Raises `ConfigError`.
        """
        self.topology: Topology = topology
        self.period, self.seed, self.consensus_step = period, seed, consensus_step
        self.compress, self.clip = compress or Dense(), clip
        self.aggregation = Aggregation(aggregate, attack)
        if not self.aggregation.plain:
            self.traits = replace(
                self.traits, unaveraged="joins weights of neighbours, of which some lie or a rule makes what it will"
            )
        needs: list[Need] = []
        if not isinstance(self.compress, Dense):
            sums = "lets a worker know the sum of its neighbours' messages, and not their weights", "compress"
            needs += [Need(term, *sums) for term in (ADDED_UP, HONEST)]
        if topology not in STAYS:
            changes = "changes the neighbours, and with compress each worker must know what each of them knows of it"
            needs.append(Need(UNCOMPRESSED, changes, f"sync.topology={topology}", f"sync.topology={STAYS[0]}"))
        self.traits = replace(self.traits, requires=tuple(needs))
        if isinstance(self.compress, Dense) and consensus_step != 1:
            raise ConfigError(f"sync.consensus_step={consensus_step}: without compress a round mixes fully. Choose 1.")

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # W_i
        room = len(self._weights) if comm.size > 1 else 0
        self._mixed = self._weights.new_empty(room if self.aggregation.streaming else 0)
        rows = self._joined_rows(comm.size) if comm.size > 1 and not self.aggregation.streaming else 0
        self._rows = self._weights.new_zeros(rows, room)  # W_j - W_i, its own first
        self._received = torch.empty(room, dtype=self._weights.dtype)
        self._known: dict[int, Tensor] | None = None  # X_j, by worker
        if not isinstance(self.compress, Dense) and comm.size > 1:
            near = neighbours(self.topology, comm.rank, comm.size, 0, self.seed)
            alike = self._weights.clone()
            comm.broadcast(alike, src=0).wait()
            self._known = {j: alike.clone() for j in (comm.rank, *near.of)}
            vectors = {"difference": vector_of(parameters.values())}
            self._channel = Channel(self.compress, comm, vectors, feedback=False)
        self._t = self._step = 0  # its own steps; the run's last one that began

    def _joined_rows(self, replicas: int) -> int:
        """Returns the most updates that one worker aggregates, its own among them."""
        return 1 + max(len(neighbours(self.topology, i, replicas, 0, self.seed).of) for i in range(replicas))

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._step = batch.step

    def exchange_weights(self) -> None:
        self._t += 1
        if self._t % self.period == 0 and self.comm.size > 1:
            if self._known is None and self.aggregation.streaming:
                self._mix(round=self._t // self.period - 1)
            elif self._known is None:
                self._join(round=self._t // self.period - 1)
            else:
                self._mix_what_is_known(self._known)

    def _mix_what_is_known(self, known: dict[int, Tensor]) -> None:
        """CHOCO-SGD."""
        near = neighbours(self.topology, self.comm.rank, self.comm.size, 0, self.seed)
        own, a = known[self.comm.rank], 1 / (1 + len(near.of))
        message = self._channel.encode("difference", self._weights - own)
        with self.comm.timeline.named("differences"):
            sending = isend_to(as_bytes(message), near.to, self.comm)
        own += self._channel.decode("difference", message, own, self.comm.rank)
        living = []
        for j in near.of:
            with suppress(PeerLostError):
                known[j] += self._channel.receive("difference", known[j], j)
                living.append(j)
        wait_for(sending)
        # W_i <- W_i + gamma sum_j a_ij (X_j - X_i)
        for j in living:
            self._weights.add_(known[j] - own, alpha=self.consensus_step * a)

    def _mix(self, round: int) -> None:
        """W_i <- sum_j a_ij W_j"""
        near = neighbours(self.topology, self.comm.rank, self.comm.size, round, self.seed)
        buffers = self._received, self._mixed
        self._weights.copy_(mix(self._weights, self._sent(), near, self.comm, *buffers, purpose="weights"))

    def _join(self, round: int) -> None:
        """W_i <- W_i + rule(0, {W_j - W_i})"""
        near = neighbours(self.topology, self.comm.rank, self.comm.size, round, self.seed)
        leaving = self._sent().cpu()
        with self.comm.timeline.named("weights"):
            sending = isend_to(leaving, near.to, self.comm)
        of = [self.comm.rank, *sorted(near.of)]  # in a matching one may sit out
        rows = self._rows[: len(of)]
        rows[0].zero_()
        for j in near.of:
            way = rows[of.index(j)]
            self.aggregation.read(j, way, partial(self._way_from, j, way))
        wait_for(sending)
        self._weights.add_(self.aggregation.join_near(rows, of, self.comm.size, self._step))

    def _way_from(self, j: int, way: Tensor) -> None:
        """way <- W_j - W_i"""
        if recv_from(self._received, j, self.comm):
            torch.sub(self._received.to(way.device), self._weights, out=way)
        else:
            way.zero_()  # the dead are replaced by the worker itself

    def _sent(self) -> Tensor:
        return self.aggregation.sent(self._weights, self.comm.rank, self.comm.size, self._step)

    def mean(self) -> Tensor:
        """Returns the mean over the living replicas that are not Byzantine; over all living ones if all are."""
        byzantine = self.aggregation.attack.byzantine(self.comm.size)
        counts = float(self.comm.rank not in byzantine or len(byzantine) == self.comm.size)
        return mean_of_living(self._weights if counts else torch.zeros_like(self._weights), counts, self.comm)

    def state_dict(self) -> State:
        known = {} if self._known is None else {"channel": self._channel.state_dict()}
        known["known"] = {str(j): x for j, x in (self._known or {}).items()}
        return {**super().state_dict(), **known, "t": self._t}

    def unjoinable(self, state: State) -> str:
        return "each replica knows the weights of its neighbours" if state["known"] else ""  # else the consensus

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        if self._known is not None:
            self._known = {int(j): x.clone() for j, x in state["known"].items()}
            self._channel.load_state_dict(state.get("channel", {}))

    def buffers(self) -> list[Tensor]:
        known = [] if self._known is None else [*self._known.values(), *self._channel.buffers()]
        return [self._mixed, self._rows, self._received, *known]

    def report(self) -> Measures:
        return {"lost": sorted(self.comm.lost())}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        replicas = world.replicas
        streaming = self.aggregation.streaming  # else each worker joins some rows alone
        own = self.aggregation.notes(self.compress, replicas, all_together=streaming) if replicas > 1 else []
        byzantine, most = (
            self.aggregation.attack.byzantine(replicas),
            self.aggregation.aggregate.withstands(self._joined_rows(replicas)),
        )
        if streaming or not byzantine:
            return own
        near = [{*neighbours(self.topology, i, replicas, 0, self.seed).of} & byzantine for i in range(replicas)]
        worst = max((i for i in range(replicas) if i not in byzantine), key=lambda i: len(near[i]), default=0)
        if len(near[worst]) <= most:
            return own
        return [
            *own,
            f"attack.workers={self.aggregation.attack.workers}: {len(near[worst])} of the neighbours of worker {worst} "
            f"lie, and this aggregate is made for {most} at most: training may go anywhere",
        ]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.attack.check(world.replicas)
        self.aggregation.check_not_alone(world.replicas)
        rows = self._joined_rows(world.replicas)
        try:
            self.aggregation.aggregate.check(rows)
        except ConfigError as error:
            raise ConfigError(
                f"{error.text}; a worker joins its own row and those of {rows - 1} neighbours: "
                "sync.topology=exponential has more of them",
                error.about,
            ) from None
        size, known, replicas = payload(parameters), 0, world.replicas
        vector = vector_of(parameters)
        self.compress.check(vector)
        if not isinstance(self.compress, Dense) and replicas > 1:
            others = len(neighbours(self.topology, 0, replicas, 0, self.seed).of)
            known = (1 + others) * size + self.compress.remembered(vector)
        keeping = "the time that a worker takes to keep what its neighbours know is not modelled"
        compressed = "" if isinstance(self.compress, Dense) else Note(("compress", "sync"), keeping)
        return Transfers(
            [to_neighbours(self.topology, replicas, self.compress.nbytes(vector), self.period, vector.n)],
            buffers=(2 if self.aggregation.streaming else 1 + rows) * size + known if replicas > 1 else 0,
            varies=self.compress.varies(None),
            unpredicted=self.aggregation.unpredicted or compressed,
        )
