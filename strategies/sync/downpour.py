"""Asynchronous SGD through parameter servers (ASP; Downpour SGD: Dean et al. 2012, "Large Scale Distributed Deep
Networks", NeurIPS).

Workers go at their own pace; the server has the optimizer. In step t a worker

    fetches the weights if n_fetch divides t,
    computes the gradient g of its mini-batch and accrues it: a <- a + g,
    steps its own copy if it will not fetch next: w <- step(w, g),
    pushes a, and sets a <- 0, if n_push divides t + 1;

the server applies each push at once: w <- step(w, a), with rate eta p where p is the share of the worker's batch in all
samples of a step (`rate=share`), so that P workers move the weights as far a step as one with the batch of all, or with
rate eta (`rate=full`, as Dean et al. have it), so that they move them P times as far. Its version is the number of its
steps; the staleness of a push is the number of versions that came between its worker's last fetch and the push. One
worker with n_push = n_fetch = 1 is serial SGD, bit for bit. P equal workers in turn have staleness P - 1.

*Several servers*: each has a contiguous run of whole parameters, balanced by bytes, with version and staleness of its
own; workers talk to all of them. Without the *lock* (You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and Knights
Landing Clusters": the master handles requests at once) all servers have the same weights in shared memory and step them
as pushes come, with optimizer state of their own; worker r talks to server r mod servers. Updates may be lost where two
servers write at once. Versions, and so staleness, are each server's own.

Deviations from the paper: a is pushed when it holds n_push gradients, where Dean's first push holds one; replicas start
alike; a batch without samples is neither fetched for nor pushed.

With `attack` some workers push other gradients than theirs. With `aggregate=zeno` a push counts only if it points along
the last one of a trusted replica (exchange/aggregate/zeno.py), and what does not is told of as dropped. With `compress`
a worker pushes the message of a (exchange/channel.py), to each server its own, and adds what was left out to its next
push; servers answer with whole weights.

`consensus` is replica 0's own copy: as last fetched, with its own steps since. A checkpoint holds the servers' weights
and optimizers when replica 0 saved, and how far replica 0 is between two pushes; what the others had not pushed is
lost.

Cost per step, S bytes of gradient, n servers that a worker talks to (1 without the lock): a worker sends
(S + 8 n) / n_push + 8 n / n_fetch, and all servers S / n_fetch to each worker. With `compress` the S of a push is that
of its messages.

Use it where workers differ in speed from step to step and nobody shall wait, and where stale gradients do no harm:
few workers, or a small learning rate. With equal workers on a fast network sync=bsp reaches the target in fewer
steps.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.notes import Note
from ...cost.transfer import Transfer
from ...exchange.aggregate import Aggregator
from ...exchange.aggregation import Aggregation
from ...exchange.attack import Attack
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense
from ...exchange.flat import check_one_dtype
from ...exchange.pushing import HEADER, ServerRequest, stated, unpredicted, varying
from ...exchange.server_shards import held_by_servers, shards_of
from ..core.batch import Batch
from ..core.cost import Memory, Transfers, World, payload
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from .servers import ServerSync


class Downpour(ServerSync):
    """Nobody waits: servers step with each push as it comes."""

    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        survives=True,
        drops_writes=True,
        aggregates="pushes",
        one_by_one=True,
    )

    def __init__(
        self,
        push: Annotated[int, Ge(1)] = 1,
        fetch: Annotated[int, Ge(1)] = 1,
        rate: Literal["share", "full"] = "share",
        servers: Annotated[int, Ge(1)] = 1,
        lock: bool = True,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`push`, `fetch`: n_push and n_fetch, in steps. `rate`: of a push.

        `lock`: each server has weights of its own; else all have the same. `compress`: of pushes; None for no
        compression. `aggregate`, `attack`: None for the mean, and for nobody. `clip`: of each gradient, before it
        is accrued; None for none. Raises `ConfigError`.
        """
        self.n_push, self.n_fetch, self.takes_share, self.lock = push, fetch, rate == "share", lock
        super().__init__(servers, compress or Dense(), Aggregation(aggregate, attack), clip, gathers=False)
        self.traits = replace(
            self.traits,
            steps_on_workers=fetch > 1,
            waits_in_passes=not lock,  # for the servers' writes, whenever time passes
            serial_alone=push == 1,  # what is kept back is not stepped with yet
        )

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._among_servers = None if self.lock else comm.split(0 if self._serves else None)
        self._dropped = 0
        if self._serves:
            self._server.remember(self.aggregation)
            if self._among_servers is not None:
                self._server.share(self._among_servers)

    def _shards_of(self, parameters: Sequence[Any]) -> list[list[Any]]:
        return shards_of(parameters, self.servers) if self.lock else [[*parameters]]

    def _servers_of(self, worker: int) -> Sequence[int]:
        return range(self._workers, self.comm.size) if self.lock else [self._workers + worker % self.servers]

    # -- a worker

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if self._share > 0 and self._worker.steps % self.n_fetch == 0:
            self._worker.fetch()

    def update(self) -> None:
        if self._share == 0:
            return
        self.clip_gradients()
        self._worker.accrue(self._share, self._of_step)  # a <- a + g
        t = self._worker.steps
        if t % self.n_fetch != 0:
            self.optimizer.step()
        if t % self.n_push == 0:
            self._worker.push()

    def skip(self) -> None:
        """Counts no step: the gradients accrued before are pushed with the next ones."""

    def rejoin(self) -> None:
        super().rejoin()
        if self._worker.steps % self.n_fetch != 0:  # else the next step does
            self._worker.fetch()

    def drain(self) -> None:
        if self._worker.owes:
            self._worker.push()

    def finish(self) -> None:
        self.drain()
        super().finish()

    # -- a server

    def serve(self) -> None:
        serving = self._server.serving
        while serving.going:
            serving.hear(self._listen)
        if self._among_servers is not None:
            self._among_servers.barrier()  # the others have applied their last pushes too
        whose = range(self._workers) if self.lock else range(self._number, self._workers, self.servers)
        serving.send_last(self._server.weights, to=whose)

    def _listen(self) -> None:
        worker, header = self._server.first()
        match header:
            case ServerRequest.FETCH:
                self._server.answer(worker)
            case ServerRequest.SAVE:
                self._server.answer_save(worker, keeps_weights=self.lock or self._number == 0)
            case ServerRequest.DONE:
                self._server.serving.going.discard(worker)
            case share:
                self._server.receive(self._server.gradient, worker)
                self._server.count(worker, share * self.n_push)
                if self._admits(worker):
                    self._server.step(share if self.takes_share else 1.0)  # w <- step(w, a)
                    self.made_at = self.comm.now()
                else:
                    self._dropped += 1

    def _admits(self, worker: int) -> bool:
        """Returns whether the gradient that this worker pushed counts. The rule may replace it."""
        if not self.aggregation.aggregate.traits.one_by_one:
            return True
        gradient = self._server.gradient
        admitted = self.aggregation.aggregate.admitted(gradient, worker)
        if admitted is not None and admitted is not gradient:
            gradient.copy_(admitted)
        return admitted is not None

    # -- state, measures and what is stated

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self._among_servers is not None:
            self._among_servers.barrier()  # nobody serves weights before server 0 has loaded them

    def report(self) -> Measures:
        tells = self._serves and self.aggregation.aggregate.traits.one_by_one
        return super().report() | (Measures(dropped=self._dropped) if tells else Measures())

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """The push that is applied."""
        return held_by_servers(held, self._shards_of(parameters), 1)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.check(world.replicas)
        shards, size = self._shards_of(parameters), payload(parameters)
        pushed, kept = stated(shards, self.compress, world, self.n_push)
        headers, push, fetch = HEADER * len(shards), self.n_push, self.n_fetch
        uneven = "" if push == fetch == 1 else Note(("sync",), "steps with and without a push take different times")
        return Transfers(
            [
                Transfer("send", 2, pushed),
                Transfer("send", 2, headers, every=push, with_samples=True, timed=False),
                Transfer("send", 2, headers, every=fetch, first=1, with_samples=True, timed=False),
                Transfer("send", 2, size, every=fetch, first=1, with_samples=True, from_server=True),
            ],
            buffers=size + kept,
            varies=varying(self.compress, world),
            unpredicted=unpredicted(self.compress, self.servers, self.aggregation) or uneven,
            served="each",
        )
