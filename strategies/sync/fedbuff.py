"""Federated learning with buffered asynchronous aggregation (FedBuff: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek
and Huba 2022, AISTATS, Algorithm 1; arXiv 2106.06639).

Clients go at their own pace. Again and again a client fetches w, trains for E epochs (or Q steps) from it on its own
samples, to y, and sends its change, Delta_i = y - w; then it goes on with the newest w at once. The server
takes changes as they come, and steps when there are K of them:

    tau_i = versions that came between the client's fetch and its delivery
    Delta <- Delta + s(tau_i) Delta_i,   s(tau) = (1 + tau)^-a,   a = 1/2
    with the K-th:   w <- w + eta_g Delta / K,   Delta <- 0

The mean is over K, not over the weights s: stale changes move w less. With K clients of equal speed all changes of a
buffer are of one version, and with as many samples each that is FedAvg, round for round. K = 1 is asynchronous
averaging, each change by itself. K may be more than there are clients, since nobody waits for a step.

The order of what comes is all that decides: it is the clock's on the virtual cluster, where the same seed gives the
same order and the same bits; on processes it is the network's, and differs from run to run.

Deviations from the paper: all clients train all the time, where the paper samples so many of those that are there; what
is in the buffer at the end is stepped with, its mean over as many as there are; eta_g is the `server` rule's, which may
be momentum, Adagrad, Adam or Yogi (exchange/server/) in place of a plain step; a client is an optimizer of any kind,
which keeps its state from round to round (`momentum=kept`) or starts each one anew (`reset`). A round without samples
delivers nothing.

With `compress` a client sends the message of its change (exchange/channel.py) and adds what was left out to its next
one; w goes to clients whole.

`consensus` is the server's w when replica 0 asks, which disturbs nobody. A checkpoint holds w, the buffer and what the
rule remembers as they are then, replica 0's optimizer and, inside a round, what it has trained of it: a resumed
replica 0 goes on where it was; the other clients lose what they had trained of their round, do the rest of it with the
w that was saved, and start with a new optimizer. A client that dies is missed by nobody. Where a replica has several
parts each has a server of its own, which goes by its own order.

Cost per step, S bytes of weights, L steps a round: a client sends (S + 32) / L (a change and two headers of 16 bytes),
and the server S / L to each. What is delivered after the last step, where training ends inside a round, is no step's. A
client holds the w that it fetched, the server a change and the sum, 2 S bytes.

Use it where clients differ in speed and a round of FedAvg would wait for the slowest. Where all are equally fast FedAvg
does the same with fresh weights.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...conf.errors import ConfigError
from ...cost.transfer import Transfer
from ...exchange.buckets import views_of
from ...exchange.channel import Channel, held
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.server import ServerRule
from ...exchange.server.plain import PlainServer
from ...exchange.serving import Serving, message_of, recv_dated
from ...exchange.survivors import isend_to, wait_for
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Memory, Transfers, World, payload
from ..core.state import State, recv_state
from ..core.sync import Measures, SyncTraits
from ..core.with_servers import SyncWithServers

HEADER = 16  # bytes: a message, a number of samples


class BufferMessage(IntEnum):
    """The kind of a client's message to the server, at the head of a header."""

    JOIN = 0  # send me the weights
    DELIVER = 1  # my change follows, trained on so many samples; none follows where that is 0
    PEEK = 2  # send me the weights, to evaluate, and when they were made
    SAVE = 3  # send me your state
    DONE = 4  # I will ask no more; send me the last weights once all are done


class FedBuff(SyncWithServers):
    """Clients that train for a whole round between two messages, and a server that waits for none of them."""

    servers = 1
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        sends_changes=True,
        client_rounds=True,
        serial_alone=False,  # w + (y - w) is y but for rounding
        survives=True,
        unaveraged="has its weights on the server, which would have to be asked for them after each step",
    )

    def __init__(
        self,
        buffer: Annotated[int, Ge(1)] | None = None,
        epochs: Annotated[int, Ge(1)] = 1,
        steps: Annotated[int, Ge(1)] | None = None,
        discount: Annotated[float, Ge(0)] = 0.5,
        momentum: Literal["kept", "reset"] = "kept",
        compress: Compressor | None = None,
        server: ServerRule | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`buffer`: K; None for half of the clients, rounded up. `epochs`, `steps`: E, or Q in its place, of a round.

        `discount`: a; 0 weighs all changes alike. `momentum`: of a client's optimizer, all of its state. `compress`:
        of changes; None for no compression. `server`: how it steps; None for the whole mean change. `clip`: of a
        client's own gradient; None for none. Raises `ConfigError`.
        """
        if steps is not None and epochs != 1:
            raise ConfigError(
                f"sync.steps={steps}: says how long a round is, and so does sync.epochs={epochs}; leave one out"
            )
        self.buffer, self.epochs, self.steps, self.discount, self.momentum = buffer, epochs, steps, discount, momentum
        self.compress, self.server, self.clip = compress or Dense(), server or PlainServer(), clip

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # w on the server, y on a client
        self._channel = Channel(self.compress, comm, {"way": vector_of(parameters.values())})
        self._header = torch.zeros(2, dtype=torch.int64)
        self._server = comm.size - 1
        self._finished = False
        if comm.rank == self._server:
            self._received, self._sum = torch.empty_like(self._weights), torch.zeros_like(self._weights)  # ..., Delta
            self._count, self._version = 0, 0  # changes in the buffer, the server's steps
            self._fetched = [0] * self._clients  # by client, of which version
            self._staleness: Counter[int] = Counter()
            self._sending: list[Work] = []  # w, to those who fetch it
        else:
            self._began = torch.empty_like(self._weights)  # the w that it fetched
            self._inside, self._seen = False, 0  # a round; samples in it

    @property
    def _clients(self) -> int:
        return self.comm.size - 1

    def full(self, clients: int) -> int:
        """K, among so many clients."""
        return self.buffer or -(-clients // 2)

    # -- a client

    def next_step(self, step: int) -> int:
        self._ends_round = (step + 1) % (self.steps or self.epochs * self.setting.steps_per_epoch) == 0
        return step

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if not self._inside:
            self._tell(BufferMessage.JOIN)
            self.comm.recv(self._weights, self._server)
            self._began.copy_(self._weights)
            self._inside, self._seen = True, 0
            if self.momentum == "reset":
                self.optimizer.state.clear()
        self._seen += batch.size

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()
        if self._ends_round:
            self.drain()

    def rejoin(self) -> None:
        """Drops what was trained of the round: the next step begins one with the newest w."""
        self._inside = False
        self.optimizer.state.clear()
        self._channel.load_state_dict({})

    def drain(self) -> None:
        """The round is over, or training."""
        if not self._inside:
            return
        with self.comm.timeline.named("push"):
            self._tell(BufferMessage.DELIVER, self._seen)
            if self._seen > 0:
                self._channel.isend("way", self._weights - self._began, self._server).wait()
        self._inside = False

    def finish(self) -> None:
        self.drain()
        self._tell(BufferMessage.DONE)
        self.comm.recv(self._weights, self._server)
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        """The server's weights, as they are now."""
        if self._finished:
            return super().consensus()
        self._tell(BufferMessage.PEEK)
        weights, self.made_at = recv_dated(self._weights, self._server, self.comm)
        return dict(zip(self.parameters, views_of(weights, list(self.parameters.values())), strict=True))

    def _tell(self, message: BufferMessage, samples: int = 0) -> None:
        self._header.copy_(torch.tensor([message, samples]))
        self.comm.send(self._header, self._server)

    # -- the server

    def serve(self) -> None:
        self._serving = serving = Serving(self.comm, self._clients, self.traits.survives)
        while serving.going:
            serving.hear(self._listen)
        self._step()
        serving.send_last(self._weights)

    def _listen(self) -> None:
        client = self.comm.recv_any(self._header)
        message, samples = self._header.tolist()
        match message_of(BufferMessage, message, client):
            case BufferMessage.JOIN:
                self._fetched[client] = self._version
                with self.comm.timeline.named("fetch"):
                    self._sending += isend_to(self._weights, [client], self.comm)
            case BufferMessage.DELIVER:
                if samples > 0:
                    self._channel.recv("way", self._received, client)
                    self._add(client)
            case BufferMessage.PEEK:
                with self.comm.ledger.aside():
                    self._serving.send(self._weights, client)
                    self._serving.send(torch.tensor([self.made_at], dtype=torch.float64), client)
            case BufferMessage.SAVE:
                self._serving.send_state(self._state(), client)
            case _:
                self._serving.going.discard(client)

    def _add(self, client: int) -> None:
        """Delta <- Delta + s(tau) Delta_i, and a step with every K-th"""
        tau = self._version - self._fetched[client]
        self._staleness[tau] += 1
        self._sum.add_(self._received, alpha=(1 + tau) ** -self.discount)
        self._count += 1
        if self._count == self.full(self._clients):
            self._step()

    def _step(self) -> None:
        """w <- w + eta_g Delta / K, if there is anything; Delta <- 0"""
        wait_for(self._sending)
        self._sending.clear()
        if self._count == 0:
            return
        self.server.step(self._weights, self._sum.div_(self._count))
        self._sum.zero_()
        self._count = 0
        self._version += 1
        self.made_at = self.comm.now()

    # -- state and measures

    def state_dict(self) -> State:
        """Returns the state of replica 0: its optimizer, its training in its round, and the server's state."""
        local = {"weights": self._weights, "began": self._began, "seen": self._seen} if self._inside else None
        own = {"optimizer": self.optimizer.state_dict(), "channel": self._channel.state_dict(), "local": local}
        return {**own, "server": self._ask_state()}

    def _ask_state(self) -> State | None:
        if self.comm.rank != 0 or self._finished:
            return None
        with self.comm.ledger.aside():
            self._tell(BufferMessage.SAVE)
            return recv_state(self._server, self.comm)

    def _state(self) -> State:
        """Returns the state of the server. The versions that replicas other than 0 fetched are not in it."""
        own = {"weights": self._weights, "sum": self._sum, "count": self._count, "version": self._version}
        return {**own, "fetched": self._fetched[0], "rule": self.server.state_dict()}

    def load_state_dict(self, state: State) -> None:
        if self.comm.rank == self._server and (saved := state["server"]) is not None:
            self._weights.copy_(saved["weights"])
            self._sum.copy_(saved["sum"])
            self._count, self._version = saved["count"], saved["version"]
            self._fetched[0] = saved["fetched"]
            self.server.load_state_dict(saved["rule"])
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._channel.load_state_dict(state["channel"])
            if (local := state["local"]) is not None:
                self._weights.copy_(local["weights"])
                self._began.copy_(local["began"])
                self._inside, self._seen = True, local["seen"]

    def buffers(self) -> list[Tensor]:
        serves = self.comm.rank == self._server
        own = [self._received, self._sum, *self.server.buffers()] if serves else [self._began]
        return [*own, *self._channel.buffers()]

    def report(self) -> Measures:
        measured: Measures = {"lost": sorted(self.comm.lost())}
        if self.comm.rank == self._server:
            measured |= {"staleness": dict(self._staleness), "rounds": self._version}
        return measured

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """A change, the sum of a buffer's, and what the rule remembers."""
        size = payload(parameters)
        return {**held, "optimizer": 0, "buffers": 2 * size + self.server.holds(size)}

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        length = self._round_length(world)
        if length is None or world.steps is None:
            return []
        k, ways = self.full(world.replicas), -(-world.steps // length) * world.replicas
        if ways >= k:
            return []
        return [f"sync.buffer={k}: the run has {ways} rounds of clients, so that the server steps once, at its end"]

    def _round_length(self, world: World) -> int | None:
        """L, in steps, where it is known."""
        per_epoch = world.steps_per_epoch
        return self.steps or (None if per_epoch is None else self.epochs * per_epoch)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size, vector = payload(parameters), vector_of(parameters)
        self.compress.check(vector)
        own, length = size + held(self.compress, [vector]), self._round_length(world)
        if length is None or world.steps_per_epoch is None:
            return Transfers(
                buffers=own,
                varies=self.compress.varies(None)
                or "how many steps and samples a round has is known once the data are dealt; of a whole round a client "
                f"sends {2 * HEADER + self.compress.nbytes(vector):,} bytes, and the server {size:,} to it",
                unpredicted=UNMEASURED,
            )
        return Transfers(
            [
                Transfer("send", 2, HEADER, every=length, first=1, timed=False),
                Transfer("send", 2, HEADER, every=length, timed=False),
                # longer rounds than one step have some samples
                Transfer("send", 2, self.compress.nbytes(vector), every=length, with_samples=length == 1),
                Transfer("send", 2, size, every=length, first=1, from_server=True),
            ],
            buffers=own,
            varies=self.compress.varies(None),
            unpredicted=UNMEASURED,
        )
