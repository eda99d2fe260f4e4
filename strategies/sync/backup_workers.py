"""Synchronous SGD with backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
algorithms 3 and 4).

K = N + b replicas, one server. Version v of the weights becomes version v + 1 when N gradients of it have arrived:

    g = sum_j share_j g_j / sum_j share_j   over the first N replicas j, added in the order of ranks
    w <- step(w, g)

so that every update is the mean over the samples of exactly N gradients, all of staleness 0. A gradient that comes
later is dropped, and its worker goes on at the newest version: versions are steps, and who is late leaves steps out.
b = 0 is BSP.

With compute times that are Exp(l), and workers that all begin a version together, a step takes as long as the N-th
fastest of N + b: (H_{N+b} - H_b) / l on average, H_n = 1 + 1/2 + ... + 1/n. That needs stragglers that give up when a
version is closed. Here, as in the paper's algorithm, they finish what they have begun, so that they begin the next
version late, after another Exp(l) by lack of memory: a step takes the N-th least of N times that are Exp(l) and b that
are Gamma(2, l).

Deviations from the paper: replicas start alike, and a push is answered with the next version as soon as it is there,
which saves asking for it; gradients are weighted by samples; there is no moving average of the weights. A batch without
samples is no gradient: where fewer than N replicas have any in a step, it takes as many. So it is at the end of a run
that was told to stop, when some have left before the others.

With b >= 1 the run goes on without workers that die as long as N are left. `consensus` is replica 0's copy, of the last
version that it was given; a checkpoint holds the server's.

With `compress` a worker pushes the message of its gradient (exchange/channel.py). What a dropped gradient's message had
in it is lost, as the gradient is; what it left out is not.

Cost per step that a worker trains, S bytes of gradient, or of its message: it sends S + 24 (a header), dropped or not,
and the server sends it S + 8, S of weights.

Use it where a few workers, others each time, are late in a step, and their work may be thrown away: b backups cost
b/(N+b) of all machines, and save what waiting for the b slowest takes.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError
from ...cost.transfer import Transfer
from ...exchange.buckets import put_gradients, views_of
from ...exchange.channel import Channel
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.pushing import stated, unpredicted, varying
from ...exchange.rank_order import RankOrderedSum
from ...exchange.server_shards import held_by_servers
from ...exchange.serving import Serving, message_of
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import Memory, Transfers, World, payload
from ..core.errors import TooFewClientsError
from ..core.state import State, recv_state
from ..core.sync import Measures, SyncTraits
from ..core.trial import Trial
from ..core.with_servers import SyncWithServers
from ..schedules import scaled

HEADER = 24  # bytes: a message, the version that it is about, and the batch's share, float64
ANSWER = 8  # bytes: a version, before its weights; its complement ~v to a worker whose gradient was dropped


class BackupMessage(IntEnum):
    """The kind of a worker's message to the server."""

    PUSH = 0  # my gradient of this version follows; send me the next version
    SKIP = 1  # my batch has no samples; send me the next version
    SAVE = 2  # send me your state
    DONE = 3  # I take part in no more versions; send me the last one once all are done


class BackupWorkers(SyncWithServers):
    """Replicas of which a step waits for the fastest, and one server."""

    trial = Trial(alone={"backups": 0})
    servers = 1
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        steps_on_workers=False,
        drops_writes=True,
        whole_replica="could give the stages of one replica different versions of the weights",
    )

    def __init__(
        self, backups: Annotated[int, Ge(0)] = 1, compress: Compressor | None = None, clip: Clip | None = None
    ) -> None:
        """`backups`: b, the replicas that a step does not wait for. `compress`: of pushes; None for no compression.
        `clip`: of a gradient before it is pushed; None for none.
        """
        self.backups, self.compress, self.clip = backups, compress or Dense(), clip
        self.traits = replace(
            self.traits,
            survives=backups > 0,
            exact=self.compress.traits.lossless and (clip is None or not clip.clips),
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.compress.check_optimizer(optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        self._server = self._replicas = comm.size - 1  # K
        self._check(self._replicas)
        self._needed = self._replicas - self.backups  # N
        self._params = list(parameters.values())
        self._weights = flatten(self._params)
        self._gradient = torch.zeros_like(self._weights)  # of this worker; on the server, the sum of a version's
        self._gradients = views_of(self._gradient, self._params)
        self._channel = Channel(self.compress, comm, {"gradient": vector_of(self._params)})
        self._received = torch.empty_like(self._weights) if comm.rank == self._server else None
        self._header = torch.zeros(3, dtype=torch.float64)
        self._answer = torch.zeros(1, dtype=torch.int64)
        self._version = 0  # of the weights
        self._used = self._dropped = 0

    def _check(self, replicas: int) -> None:
        if self.backups >= replicas:
            raise ConfigError(
                f"sync.backups={self.backups}: leaves no gradient to step with, of {replicas} replicas. "
                f"Choose sync.backups <= {replicas - 1}, or more hardware.workers."
            )

    # -- a worker

    def next_step(self, step: int) -> int:
        return max(step, self._version)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share = batch.share

    def update(self) -> None:
        if self._share > 0:
            self.clip_gradients()
            for gradient, parameter in zip(self._gradients, self._params, strict=True):
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad.to_dense())
            with self.comm.timeline.named("push"):
                self._tell(BackupMessage.PUSH)
                self._channel.isend("gradient", self._gradient, self._server).wait()
        else:
            self._tell(BackupMessage.SKIP)
        self._pull()

    def skip(self) -> None:
        self._tell(BackupMessage.SKIP)
        self._pull()

    def rejoin(self) -> None:
        """`skip` fetches the newest version."""
        self._channel.load_state_dict({})

    def _pull(self) -> None:
        self.comm.recv(self._answer, self._server)
        answer = int(self._answer)
        self.took_step = answer >= 0
        self._version = answer if self.took_step else ~answer
        self.comm.recv(self._weights, self._server)

    def finish(self) -> None:
        self._tell(BackupMessage.DONE)
        self._pull()

    def _tell(self, message: BackupMessage) -> None:
        share = self._share if message == BackupMessage.PUSH else 0.0
        self._header.copy_(torch.tensor([message, self._version, share], dtype=torch.float64))
        self.comm.send(self._header, self._server)

    # -- the server

    def serve(self) -> None:
        self._serving = serving = Serving(self.comm, self._replicas, self.traits.survives)
        self._without: set[int] = set()  # who have none for this version
        self._sum = RankOrderedSum(self._gradient)
        self._waiting: list[int] = []  # for the next version
        while serving.going:
            if (dead := serving.hear(self._listen)) is not None:
                self._check_left(dead)
            self._close_version()
        with self.comm.timeline.named("fetch"):
            serving.send_last(self._answer.fill_(self._version), self._weights)

    def _listen(self) -> None:
        worker = self.comm.recv_any(self._header)
        message, version, share = self._header.tolist()
        match message_of(BackupMessage, message, worker):
            case BackupMessage.PUSH:
                self._receive_gradient(worker, share, is_late=version < self._version)
            case BackupMessage.SKIP if version == self._version:
                self._without.add(worker)
                self._waiting.append(worker)
            case BackupMessage.SKIP:
                self._give_version(worker)
            case BackupMessage.SAVE:
                self._serving.send_state(self._state(), worker)
            case BackupMessage.DONE:
                self._serving.going.discard(worker)

    def _receive_gradient(self, worker: int, share: float, is_late: bool) -> None:
        assert self._received is not None
        self._channel.recv("gradient", self._received, worker)
        if is_late:
            self._dropped += 1
            self._give_version(worker, dropped=True)
        else:
            self._sum.add(worker, share, self._received)
            self._waiting.append(worker)

    def _close_version(self) -> None:
        """Closes the version if it has its N gradients, or all that it can have."""
        given = self._sum.ranks
        possible = given | (self._serving.going - self._without)
        if not self._waiting or len(given) < min(self._needed, len(possible)):
            return
        self._used += len(given)
        if given:
            total = self._sum.close()
            if (made := self._channel.finish("gradient", total)) is not total:
                total.copy_(made)
            put_gradients(self._params, self._gradients)
            with scaled([self.optimizer], self.setting.rate.factor(self._version)):  # versions are steps
                self.optimizer.step()
            self.made_at = self.comm.now()
        self._sum.clear()
        self._version += 1
        self._without.clear()
        for worker in self._waiting:
            self._give_version(worker)
        self._waiting.clear()

    def _give_version(self, worker: int, dropped: bool = False) -> None:
        self._answer.fill_(~self._version if dropped else self._version)
        with self.comm.timeline.named("fetch"):
            self._serving.send(self._answer, worker)
            self._serving.send(self._weights, worker)

    def _check_left(self, dead: int) -> None:
        """Raises `TooFewClientsError` where too few are left to step."""
        lost = sorted(self.comm.lost() | {dead})
        left = self._replicas - len(lost)
        if left < self._needed:
            raise TooFewClientsError(
                f"replicas {', '.join(map(str, lost))} died: {left} of {self._replicas} are left, and a step takes "
                f"{self._needed} gradients (sync.backups={self.backups})"
            )

    # -- state and measures

    def state_dict(self) -> State:
        """The server's, and what this replica has left out."""
        self._tell(BackupMessage.SAVE)
        slots = self._channel.state_dict()
        return recv_state(self._server, self.comm) | ({"channel": slots} if slots else {})

    def _state(self) -> State:
        return {"version": self._version, "weights": self._weights, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._version = state["version"]
        self._weights.copy_(state["weights"])
        if self.comm.rank == self._server:
            self.optimizer.load_state_dict(state["optimizer"])
        elif self.comm.rank == 0:
            self._channel.load_state_dict(state.get("channel", {}))

    def buffers(self) -> list[Tensor]:
        received = [] if self._received is None else [self._received]
        return [self._gradient, *received, *self._channel.buffers()]

    def report(self) -> Measures:
        if self.comm.rank != self._server:
            return {}
        return {"staleness": {0: self._used}, "dropped": self._dropped, "lost": sorted(self.comm.lost())}

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """The sum of a version's gradients, and one that is received."""
        return held_by_servers(held, [parameters], 2)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        self._check(world.replicas)
        check_one_dtype(parameters)
        size = payload(parameters)
        pushed, kept = stated([parameters], self.compress, world)
        varies = varying(self.compress, world)
        if self.backups and (world.busy or not self.compress.traits.steady):
            varies = varies or "sync.backups: which steps a worker leaves out, as it is late, is known once it is"
        return Transfers(
            [
                Transfer("send", 2, pushed),
                Transfer("send", 2, HEADER, timed=False),
                Transfer("send", 2, size, from_server=True),
                Transfer("send", 2, ANSWER, from_server=True, timed=False),
            ],
            buffers=size + kept,
            varies=varies,
            unpredicted=unpredicted(self.compress, self.servers),
            served="all",
            waits_for=world.replicas - self.backups,
        )
