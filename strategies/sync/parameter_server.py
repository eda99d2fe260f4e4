"""Training through parameter servers: synchronous, asynchronous (ASP), and stale synchronous (SSP).

Workers push gradients to the server and fetch weights from it; the server has the optimizer.

*Asynchronous* (Downpour SGD: Dean et al. 2012, "Large Scale Distributed Deep Networks"). Workers go at their own pace.
In step t a worker

    fetches the weights if n_fetch divides t,
    computes the gradient g of its mini-batch and accrues it: a <- a + g,
    steps its own copy if it will not fetch next: w <- step(w, g),
    pushes a, and sets a <- 0, if n_push divides t + 1;

the server applies each push at once: w <- step(w, a), with rate eta p where p is the share of the worker's batch in all
samples of a step (`rate=share`), so that P workers move the weights as far a step as one with the batch of all, or with
rate eta (`rate=full`, as Dean et al. have it), so that they move them P times as far. Its version is the number of its
steps; the staleness of a push is the number of versions that came between its worker's last fetch and the push. One
worker with n_push = n_fetch = 1 is serial SGD, bit for bit. P equal workers in turn have staleness P - 1.

*Stale synchronous* (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server").
A worker's clock is the number of its steps. At clock c it may go on only while the slowest is at c - s or later. So the
weights that worker i computes its gradient g_i,t with are, for plain SGD and G_i,t = p_i,t g_i,t (or g_i,t, `full`),

    w_i,t = w_0 - eta ( sum_{k=0}^{t-s-1} sum_j G_j,k  +  sum_{k=t-s}^{t-1} G_i,k  +  sum_{(j,k) in S_i,t} G_j,k )

with S_i,t some updates of others, of clocks t-s to t+s-1. (Where this is printed with a first sum to t, clocks from
t - s on count twice: it must end at t-s-1.) Here the server withholds the answer to a fetch until the worker may go on,
and what a worker pushed that may not go on is applied at that moment: the clocks of what has been applied never lie
more than s apart. A batch without samples moves the clock and nothing else. Workers that are done, or dead, hold nobody
back. s = infinity is ASP. At s = 0 all gradients of a clock are of one version: the server steps once, with their mean
over samples, added in the order of ranks, which is BSP whatever the optimizer. For s > 0 each push is a step of its
own, as in ASP, so that what an optimizer remembers (momentum, Adam) decays P times a clock, where in BSP it does once.

*Synchronous*: as s = 0, and a push is answered with the new weights, so that workers agree after every step.

*Several servers*: each has a contiguous run of whole parameters, balanced by bytes, with version, clocks and staleness
of its own; workers talk to all of them. Without the *lock* (You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and
Knights Landing Clusters": the master handles requests at once) all servers have the same weights in shared memory and
step them as pushes come, with optimizer state of their own; worker r talks to server r mod servers. Updates may be lost
where two servers write at once. Versions, and so staleness, are each server's own.

Deviations from the papers: a is pushed when it holds n_push gradients, where Dean's first push holds one; replicas
start alike; an asynchronous batch without samples is neither fetched for nor pushed. Ho's clock ticks where the worker
says, here at every step: n_push = n_fetch = 1. The server keeps what the workers pushed that wait: P - 1 gradients at
the most.

At s = 0, and synchronously, `aggregate` may say how a clock's gradients become one (exchange/joining.py); with `attack`
some workers push others than theirs.

With `compress` a worker pushes the message of a (exchange/channel.py), to each server its own, and adds what was left
out to its next push; servers answer with whole weights.

`consensus` of the asynchronous modes is replica 0's own copy: as last fetched, with its own steps since. A checkpoint
holds the servers' weights and optimizers when replica 0 saved (under SSP: once it may go on), and how far replica 0 is
between two pushes; what the others had not pushed is lost.

Cost per step, S bytes of gradient, n servers that a worker talks to (1 without the lock): asynchronously a worker sends
(S + 8 n) / n_push + 8 n / n_fetch, and all servers S / n_fetch to each worker; synchronously S + 8 n, and S. With
`compress` the S of a push is that of its messages.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, PeerLostError, Work
from ..base import Batch, Cost, State, Sync, World, payload
from ..errors import LayoutError
from ..exchange.aggregate import Aggregator
from ..exchange.attack import Attack
from ..exchange.buckets import views_of
from ..exchange.channel import Channel, left_out
from ..exchange.clocks import Clocks
from ..exchange.compress import Compressor, Dense
from ..exchange.flat import check_one_dtype, flatten
from ..exchange.joining import Joining, Rows
from ..exchange.rank_order import RankOrderedSum
from ..exchange.server_shards import shards_of
from ..exchange.start_alike import start_alike
from ..state import from_tensor, to_tensor

HEADER = 8  # bytes: one float64, which announces a push by its batch's share, or is one of these


class Request(IntEnum):
    """What a worker says to a server that is no push."""

    SKIP = 0  # my batch has no samples: no gradient follows
    FETCH = -1  # send me the weights, as soon as I may go on
    SAVE = -2  # send me your state, then too
    DONE = -3  # I will ask no more; send me the last weights once all are done


@dataclass(frozen=True)
class Place:
    """What one server holds of a worker's weights and accrued gradients (views)."""

    server: int
    weights: Tensor
    accrued: Tensor


@dataclass(frozen=True)
class Push:
    """What a server has received and not applied."""

    worker: int
    share: float
    gradient: Tensor


class ParameterServer(Sync):
    """Workers and, for each part of the model, one or several servers."""

    def __init__(
        self,
        mode: Literal["synchronous", "asynchronous"] = "asynchronous",
        staleness: Annotated[int, Ge(0)] | None = None,
        push: Annotated[int, Ge(1)] = 1,
        fetch: Annotated[int, Ge(1)] = 1,
        rate: Literal["share", "full"] = "share",
        servers: Annotated[int, Ge(1)] = 1,
        lock: bool = True,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
    ) -> None:
        """`staleness`: SSP's s, in steps; None for no bound. `push`, `fetch`: n_push and n_fetch, in steps.

        `rate`: of an asynchronous push. `lock`: each server has weights of its own; else all have the same.
        `compress`: of pushes; None for no compression. `aggregate`: of a clock's gradients; None for the mean.
        `attack`: None for nobody. Raises `LayoutError`.
        """
        _check(mode, staleness, push, fetch, lock)
        self.takes_share = rate == "share"
        self.n_push, self.n_fetch, self.servers, self.lock = push, fetch, servers, lock
        self.compress = compress or Dense()
        self.synchronous = self.weights_agree = mode == "synchronous"
        self.state_agrees, self.entrywise = not self.compress.error_feedback, self.compress.entrywise
        self.joining = Joining(aggregate, attack)
        self.exact = self.compress.lossless and self.joining.plain
        self.survives = not self.synchronous
        self.steps_on_workers = fetch > 1
        self.bound = 0 if self.synchronous else inf if staleness is None else staleness  # s
        self._check_joining()

    def _check_joining(self) -> None:
        if self.bound > 0 and not self.joining.streaming:
            raise LayoutError(
                "aggregate: this server applies each push as it comes, and never has several gradients to choose from; "
                "choose sync=parameter_server (or sync=ssp with sync.staleness=0), or aggregate=mean"
            )
        if not self.joining.aggregate.coordinatewise:
            self.max_parts = 1
            if self.servers > 1:
                raise LayoutError(
                    f"sync.servers={self.servers}: this aggregate looks at whole gradients, and a server has a piece "
                    "of each; choose sync.servers=1"
                )

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        params = list(parameters.values())
        check_one_dtype(params, "parameter_server")
        self._workers = comm.size - self.servers
        self._server = comm.rank - self._workers  # this server's number; below 0 on a worker
        runs = shards_of(params, self.servers) if self.lock else [params] * self.servers
        self._params = params if self._server < 0 else runs[self._server]
        self._weights = flatten(self._params, "parameter_server")
        self._among_servers = None if self.lock else comm.split(0 if self._server >= 0 else None)
        if self._among_servers is not None:
            self._share_weights(self._among_servers)
        self._accrued = torch.zeros_like(self._weights)  # a; on a server, the gradient that it steps with
        self._gradients = views_of(self._accrued, self._params)
        if self._server < 0:
            sizes = [sum(parameter.numel() for parameter in run) for run in runs] if self.lock else [len(self._weights)]
            first = self._workers if self.lock else self._workers + comm.rank % self.servers
            pieces = zip(self._weights.split(sizes), self._accrued.split(sizes), strict=True)
            self._places = [Place(first + i, *piece) for i, piece in enumerate(pieces)]
        self._received = torch.empty_like(self._weights) if self._server >= 0 and self.bound == 0 else None
        self._channel = Channel(self.compress, comm)
        self._header = torch.zeros(1, dtype=torch.float64)
        self._share = 1.0  # of the last batch with samples
        self._t = 0
        self._owes = False  # what it has accrued
        self._staleness: Counter[int] = Counter()

    def _share_weights(self, servers: Comm) -> None:
        if self._weights.device.type != "cpu":
            raise LayoutError(
                "sync.lock=false: servers share the weights in the host's memory; choose hardware.device=cpu"
            )
        self._weights = servers.shared(self._weights)
        for parameter, view in zip(self._params, views_of(self._weights, self._params), strict=True):
            parameter.data = view

    # -- a worker

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._is_empty = batch.size == 0
        if self._is_empty:
            return
        self._share = batch.share
        if not self.synchronous and self._t % self.n_fetch == 0:
            # ready to receive from all before all have been told: a server that is blocked in a send takes no message
            with self.comm.timeline.named("fetch request"):
                asking = self._tell(Request.FETCH)
            _wait([*asking, *self._pull()])

    def update(self) -> None:
        if not self._is_empty:
            for accrued, parameter in zip(self._gradients, self._params, strict=True):
                if parameter.grad is not None:
                    accrued.add_(parameter.grad)
            self._t += 1
            self._owes = True
            if self._t % self.n_fetch != 0:
                self.optimizer.step()
            if self._t % self.n_push == 0:
                self._push()
        elif self.bound < inf:
            _wait(self._tell(Request.SKIP))
        if self.synchronous:
            _wait(self._pull())

    def _push(self) -> None:
        # nothing is waited for in between: two servers may each be receiving from another worker
        sent = self.joining.sent(self._accrued, self.comm.rank, self._workers)
        pieces = sent.split([len(place.accrued) for place in self._places])
        with self.comm.timeline.named("push"):
            pushing = [
                *self._tell(self._share),
                *(
                    self._channel.isend(str(place.server), piece, place.server)
                    for place, piece in zip(self._places, pieces, strict=True)
                ),
            ]
        _wait(pushing)
        self._accrued.zero_()
        self._owes = False

    def _pull(self) -> list[Work]:
        return [self.comm.irecv(place.weights, place.server) for place in self._places]

    def drain(self) -> None:
        if self._owes:
            self._push()

    def finish(self) -> None:
        self.drain()
        _wait(self._tell(Request.DONE, self._all_servers))
        _wait(self._pull())

    def _tell(self, header: float, servers: Iterable[int] | None = None) -> list[Work]:
        """`servers`: to be told; None for those that this worker trains with."""
        self._header.fill_(header)
        told = [place.server for place in self._places] if servers is None else servers
        return [self.comm.isend(self._header, server) for server in told]

    @property
    def _all_servers(self) -> range:
        return range(self._workers, self.comm.size)

    # -- a server

    def serve(self) -> None:
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            parameter.grad = gradient  # those of other servers' parameters stay None
        self._clocks = Clocks(self._workers)
        self._version, self._fetched = 0, [0] * self._workers
        streaming = self.joining.streaming  # at s = 0, of the clock's gradients
        self._sum = RankOrderedSum(self._accrued) if streaming else Rows(self._accrued, self.joining, self._workers)
        self._held: dict[int, list[Push]] = defaultdict(list)  # clock -> those that may not be read yet
        self._asking: dict[int, list[tuple[int, Request]]] = defaultdict(list)  # clock -> workers that wait there
        while self._clocks.going:
            before = self._clocks.slowest
            try:
                self._listen()
            except PeerLostError as error:
                self._go_on_without(error)
            if self._clocks.slowest > before:
                self._apply_what_may_be_read()
            self._answer_those_who_may_go_on()
        if self._among_servers is not None:
            self._among_servers.barrier()  # the others have applied their last pushes too
        with self.comm.ledger.aside():
            for worker in set(range(self._workers)) - self.comm.lost():
                if self.lock or worker % self.servers == self._server:
                    self._send(self._weights, worker)

    def _listen(self) -> None:
        worker = self.comm.recv_any(self._header)
        match float(self._header):
            case Request.FETCH | Request.SAVE as request:
                self._asking[self._clocks.of(worker)].append((worker, Request(int(request))))
            case Request.DONE:
                self._clocks.leave(worker)
            case share:
                if share > 0:
                    self._receive_push(worker, share)
                self._clocks.tick(worker)
                if self.synchronous:
                    self._asking[self._clocks.of(worker)].append((worker, Request.FETCH))

    def _receive_push(self, worker: int, share: float) -> None:
        clock = self._clocks.of(worker)
        if self._received is not None:
            # s = 0: the clock's g = sum_j share_j g_j
            self._channel.recv(self._received, worker)
            self._sum.add(worker, share, self._received)
            self._count_staleness(worker)
        elif clock < self._clocks.slowest + self.bound:
            self._channel.recv(self._accrued, worker)
            self._count_staleness(worker)
            self._step(share)
        else:
            gradient = torch.empty_like(self._accrued)
            self._channel.recv(gradient, worker)
            self._held[clock].append(Push(worker, share, gradient))

    def _apply_what_may_be_read(self) -> None:
        """The slowest has gone on: pushes of clocks below slowest + s."""
        if self._sum.ranks:
            self._sum.close()  # the mean is over the sum of shares: less than 1 where a worker has died
            self._step(1.0)
            self._sum.clear()
        for clock in sorted(clock for clock in self._held if clock < self._clocks.slowest + self.bound):
            for push in self._held.pop(clock):
                self._accrued.copy_(push.gradient)
                self._count_staleness(push.worker)
                self._step(push.share)

    def _answer_those_who_may_go_on(self) -> None:
        """At clock c: if the slowest is at c - s or later."""
        for clock in sorted(clock for clock in self._asking if clock <= self._clocks.slowest + self.bound):
            for worker, request in self._asking.pop(clock):
                if request == Request.SAVE:
                    with self.comm.ledger.aside():
                        self._send_state(worker)
                else:
                    self._fetched[worker] = self._version
                    with self.comm.timeline.named("fetch"):
                        self._send(self._weights, worker)

    def _step(self, share: float) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups if self.takes_share else []:
            group["lr"] = group["lr"] * share
        self.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self._version += 1
        self.made_at = self.comm.now()

    def _count_staleness(self, worker: int) -> None:
        self._staleness[self._version - self._fetched[worker]] += 1

    def _go_on_without(self, error: PeerLostError) -> None:
        """Raises `error` unless it tells of a worker that the others can do without."""
        if not self.survives or error.rank is None or not 0 < error.rank < self._workers:
            raise error
        self._clocks.leave(error.rank)

    def _send(self, tensor: Tensor, worker: int) -> None:
        try:
            self.comm.send(tensor, worker)
        except PeerLostError:  # the next receive tells of it too
            if not self.survives:
                raise

    def _send_state(self, worker: int) -> None:
        keeps_weights = not self.synchronous and (self.lock or self._server == 0)  # else replica 0 or server 0 does
        state = {"optimizer": self.optimizer.state_dict(), "weights": self._weights if keeps_weights else None}
        message = to_tensor(state)
        self._send(torch.tensor([len(message)]), worker)
        self._send(message, worker)

    # -- state and measures

    def state_dict(self) -> State:
        """On replica 0: the servers' state, and its own between two pushes or fetches; what was left out, on all."""
        left_out = {} if self.state_agrees else {"channel": self._channel.state_dict()}
        if self.comm.rank != 0:
            return left_out
        _wait(self._tell(Request.SAVE, self._all_servers))
        return {
            **left_out,
            "servers": [self._receive_state(server) for server in self._all_servers],
            "t": self._t,
            "share": self._share,
            "accrued": self._accrued.clone() if self._t % self.n_push != 0 else None,
            "optimizer": self.optimizer.state_dict(),
        }

    def _receive_state(self, server: int) -> State:
        length = torch.zeros(1, dtype=torch.int64)
        self.comm.recv(length, server)
        message = torch.empty(int(length), dtype=torch.uint8)
        self.comm.recv(message, server)
        return from_tensor(message)

    def load_state_dict(self, state: State) -> None:
        if self._server >= 0:
            own = state["servers"][self._server]
            self.optimizer.load_state_dict(own["optimizer"])
            if own["weights"] is not None:
                self._weights.copy_(own["weights"])
            if self._among_servers is not None:
                self._among_servers.barrier()  # nobody serves weights before server 0 has loaded them
            return
        if self.synchronous or self.comm.rank == 0:  # else each would take replica 0's
            self._channel.load_state_dict(state.get("channel", {}))
        if self.comm.rank == 0:
            self.optimizer.load_state_dict(state["optimizer"])
            self._t, self._share = state["t"], state["share"]
            if state["accrued"] is not None:
                self._accrued.copy_(state["accrued"])
                self._owes = True

    def buffers(self) -> list[Tensor]:
        received = [] if self._received is None else [self._received]
        return [self._accrued, *received, *self._channel.buffers()]

    def report(self) -> dict[str, Any]:
        if self._server < 0:
            return {}
        return {"staleness": dict(self._staleness), "lost": sorted(self.comm.lost())}

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        return self.joining.notes(self.compress, world.replicas)

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "parameter_server")
        self.joining.check(world.replicas)
        size, header = payload(parameters), HEADER * (self.servers if self.lock else 1)
        asks = 0 if self.synchronous else header / self.n_fetch
        runs = shards_of(parameters, self.servers) if self.lock else [parameters]
        vectors = [(sum(parameter.numel() for parameter in run), run[0].dtype) for run in runs]
        pushed = sum(self.compress.nbytes(*vector) for vector in vectors)
        return Cost(
            worker={"send": (pushed + header) / self.n_push + asks},
            server={"send": world.replicas * size / self.n_fetch / self.servers},
            buffers=size + left_out(self.compress, vectors),
        )


def _check(mode: str, staleness: int | None, push: int, fetch: int, lock: bool) -> None:
    if mode == "synchronous":
        if (push, fetch) != (1, 1):
            raise LayoutError(
                f"sync.push={push}, sync.fetch={fetch}: a synchronous server takes a push of every worker in every "
                "step; sync=asp takes fewer, sync=local_sgd makes workers meet less often"
            )
        if staleness is not None:
            raise LayoutError(f"sync.staleness={staleness}: sync.mode=synchronous has none; choose sync=ssp")
    if staleness is not None and (push, fetch) != (1, 1):
        raise LayoutError(
            f"sync.push={push}, sync.fetch={fetch}: a clock of sync.staleness={staleness} is one step, with a fetch "
            "and a push; only sync=asp takes fewer"
        )
    if not lock and (mode == "synchronous" or staleness is not None):
        raise LayoutError("sync.lock=false: without a lock servers share no clocks; only sync=asp takes it")


def _wait(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()
