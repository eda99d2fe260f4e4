"""Stale synchronous SGD through parameter servers (SSP: Ho et al. 2013, "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server", NeurIPS).

In each step a worker fetches the weights, computes the gradient of its mini-batch and pushes it; the server has the
optimizer. A worker's clock is the number of its steps. At clock c it may go on only while the slowest is at c - s or
later. So the weights that worker i computes its gradient g_i,t with are, for plain SGD and G_i,t = p_i,t g_i,t (or
g_i,t, `rate=full`), where p_i,t is the share of the batch in all samples of the step,

    w_i,t = w_0 - eta ( sum_{k=0}^{t-s-1} sum_j G_j,k  +  sum_{k=t-s}^{t-1} G_i,k  +  sum_{(j,k) in S_i,t} G_j,k )

with S_i,t some updates of others, of clocks t-s to t+s-1. (Where this is printed with a first sum to t, clocks from t -
s on count twice: it must end at t-s-1.) Here the server withholds the answer to a fetch until the worker may go on, and
what a worker pushed that may not go on is applied at that moment: the clocks of what has been applied never lie more
than s apart. A batch without samples moves the clock and nothing else. Workers that are done, or dead, hold nobody
back. s = infinity (`staleness=null`) is ASP. At s = 0 all gradients of a clock are of one version: the server steps
once, with their mean over samples, added in the order of ranks, which is BSP whatever the optimizer. For s > 0 each
push is a step of its own, as in ASP, so that what an optimizer remembers (momentum, Adam) decays P times a clock, where
in BSP it does once.

The version is the number of the server's steps; the staleness of a push is the number of versions that came between its
worker's last fetch and the push.

*Several servers*: each has a contiguous run of whole parameters, balanced by bytes, with version, clocks and staleness
of its own; workers talk to all of them.

Deviations from the paper: Ho's clock ticks where the worker says, here at every step; replicas start alike. The server
keeps what the workers pushed that wait: P - 1 gradients at the most.

At s = 0 `aggregate` may say how a clock's gradients become one (exchange/aggregation.py); with `attack` some workers
push others than theirs. With `compress` a worker pushes the message of its gradient (exchange/channel.py), to each
server its own, and adds what was left out to its next push; servers answer with whole weights.

`consensus` is replica 0's own copy, as last fetched. A checkpoint holds the servers' weights and optimizers when
replica 0 saved, once it may go on.

Cost per step, S bytes of gradient, n servers: a worker sends S + 16 n, and all servers S to each worker. With
`compress` the S of a push is that of its messages.

Use it where workers differ in speed at random, so that each is late now and then: a bound of a few steps takes most
of the waiting away and keeps gradients nearly fresh. Where one worker is slow all the time, it waits as sync=bsp
does.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from ...cost.transfer import Transfer
from ...exchange.aggregate import Aggregator
from ...exchange.aggregation import Aggregation
from ...exchange.attack import Attack
from ...exchange.clip import Clip
from ...exchange.clocks import Clocks
from ...exchange.compress import Compressor, Dense
from ...exchange.flat import check_one_dtype
from ...exchange.pushing import HEADER, ServerRequest, stated, unpredicted, varying
from ...exchange.server_shards import held_by_servers, shards_of
from ..core.batch import Batch
from ..core.cost import Memory, Transfers, World, payload
from ..core.held import Held, HeldCells, HeldNumber
from ..core.sync import SyncTraits
from .servers import ServerSync


@dataclass(frozen=True)
class Push:
    """A gradient that a server has received and not applied."""

    worker: int
    share: float
    gradient: Tensor


class SSP(ServerSync):
    """A worker goes on while the slowest is at most s clocks behind."""

    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        steps_on_workers=False,
        survives=True,
        drops_writes=True,
        aggregates="clocks",
    )

    def __init__(
        self,
        staleness: Annotated[int, Ge(0)] | None = 3,
        rate: Literal["share", "full"] = "share",
        servers: Annotated[int, Ge(1)] = 1,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`staleness`: s, in steps; None for no bound. `rate`: of a push, where each is a step of its own.

        `compress`: of pushes; None for no compression. `aggregate`, `attack`: None for the mean, and for nobody.
        `clip`: of a gradient before it is pushed; None for none. Raises `ConfigError`.
        """
        self.bound, self.takes_share = inf if staleness is None else staleness, rate == "share"  # s
        super().__init__(servers, compress or Dense(), Aggregation(aggregate, attack), clip, gathers=self.bound == 0)
        self.traits = replace(self.traits, one_by_one=self.bound > 0)

    # -- a worker

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if self._share > 0:
            self._worker.fetch()

    def update(self) -> None:
        if self._share > 0:
            self.clip_gradients()
            self._worker.accrue(self._share, self._of_step)
            self._worker.push()
        elif self.bound < inf:
            self._worker.skip()

    def skip(self) -> None:
        """Advances this worker's clock, as with a batch without samples."""
        if self.bound < inf:
            self._worker.skip()

    # -- a server

    def serve(self) -> None:
        serving, self._clocks = self._server.serving, Clocks(self._workers)
        self._held: dict[int, list[Push]] = defaultdict(list)  # clock -> those that may not be read yet
        self._asking: dict[int, list[tuple[int, ServerRequest]]] = defaultdict(list)  # clock -> workers that wait there
        while serving.going:
            before = self._clocks.slowest
            if (dead := serving.hear(self._listen)) is not None:
                self._clocks.leave(dead)
            if self._clocks.slowest > before:
                self._apply_what_may_be_read()
            self._answer_those_who_may_go_on()
        serving.send_last(self._server.weights)

    def _listen(self) -> None:
        worker, header = self._server.first()
        match header:
            case ServerRequest.FETCH | ServerRequest.SAVE:
                self._asking[self._clocks.of(worker)].append((worker, ServerRequest(int(header))))
            case ServerRequest.DONE:
                self._server.serving.going.discard(worker)
                self._clocks.leave(worker)
            case share:
                if share > 0:
                    self._receive_push(worker, share)
                self._clocks.tick(worker)

    def _receive_push(self, worker: int, share: float) -> None:
        clock = self._clocks.of(worker)
        if self.bound == 0:
            self._server.gather(worker, share)
        elif clock < self._clocks.slowest + self.bound:
            self._server.receive(self._server.gradient, worker)
            self._step(worker, share)
        else:
            gradient = torch.empty_like(self._server.gradient)
            self._server.receive(gradient, worker)
            self._held[clock].append(Push(worker, share, gradient))

    def _apply_what_may_be_read(self) -> None:
        """The slowest has gone on: pushes of clocks below slowest + s."""
        if self._server.step_with_gathered():
            self.made_at = self.comm.now()
        for clock in sorted(clock for clock in self._held if clock < self._clocks.slowest + self.bound):
            for push in self._held.pop(clock):
                self._server.gradient.copy_(push.gradient)
                self._step(push.worker, push.share)

    def _step(self, worker: int, share: float) -> None:
        self._server.count(worker, share)
        self._server.step(share if self.takes_share else 1.0)
        self.made_at = self.comm.now()

    def _answer_those_who_may_go_on(self) -> None:
        """Answers each worker that asks at clock c if the slowest is at c - s or later."""
        for clock in sorted(clock for clock in self._asking if clock <= self._clocks.slowest + self.bound):
            for worker, request in self._asking.pop(clock):
                if request == ServerRequest.SAVE:
                    self._server.answer_save(worker, keeps_weights=True)
                else:
                    self._server.answer(worker)

    # -- what is shown and stated

    def shows(self) -> dict[str, Held]:
        """Returns a worker's clock, and of a server the clocks of the pushes that it has applied."""
        if not self._serves:
            clock = HeldNumber(self._worker.steps, None if self.bound == inf else self.bound)
            return {"clock": clock, **super().shows()}
        clocks = [self._clocks.of(worker) for worker in range(self._workers)]
        if self.bound == 0:  # a clock's gradients wait for the slowest, and are applied together
            applied = [min(clock, self._clocks.slowest) for clock in clocks]
        else:
            held = Counter(push.worker for pushes in self._held.values() for push in pushes)
            applied = [clock - held[worker] for worker, clock in enumerate(clocks)]
        most = max(*applied, 1)
        return super().shows() | {
            "clocks applied": HeldCells(tuple(f"{clock:g}" for clock in applied), tuple(c / most for c in applied))
        }

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """The gradient, and where those of a clock are joined one that is received, and all that a rule looks at."""
        vectors = 2 + self.aggregation.rows_held(world.replicas) if self.bound == 0 else 1
        return held_by_servers(held, shards_of(parameters, self.servers), vectors)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.check(world.replicas)
        size, headers = payload(parameters), HEADER * self.servers
        pushed, kept = stated(shards_of(parameters, self.servers), self.compress, world)
        return Transfers(
            [
                Transfer("send", 2, pushed),
                Transfer("send", 2, headers, with_samples=True, timed=False),  # without samples it fetches nothing ...
                Transfer("send", 2, headers, with_samples=self.bound == inf, timed=False),  # ... but lets others go on
                Transfer("send", 2, size, with_samples=True, from_server=True),
            ],
            buffers=size + kept,
            varies=varying(self.compress, world),
            unpredicted=unpredicted(self.compress, self.servers, self.aggregation),
            served="each",
        )
