"""Elastic averaging SGD (Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD", NeurIPS; arXiv
1412.6651).

Springs tie the replicas' weights W_i to a centre Wc, which is what is trained. Both sides move by the old values:

    W_i <- W_i - eta (g_i + rho (W_i - Wc))
    Wc  <- Wc  + eta sum_i rho (W_i - Wc)

What a spring takes from W_i it gives to Wc, so that without gradients sum_i W_i + Wc is conserved. The gradient step is
the optimizer's, eta its rate as it is at that step; then alpha (W_i - Wc) with alpha = eta rho, taken from the weights
before the step, is subtracted. (Taken from the weights after it, it would be another rule.) rho = null makes alpha
0.9 / P for P replicas, the paper's choice, so that a round of all of them moves Wc 0.9 of the way to their mean.

*Synchronous* (the paper's equations 3 and 4; Sync EASGD in You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and
Knights Landing Clusters"): all springs pull in every `period`-th step, and none between. Every replica keeps a copy of
Wc, and the pulls are all-reduced. They depend on old weights alone, so they travel while the gradient is computed.

*Round-robin* (You et al. 2017, Algorithm 1, Original EASGD): in step t only the spring of replica j = t mod P pulls. Wc
goes round with the turn: the replica that had it last sends it to j (at first the last one has it), which is half of
what goes to and from a server. All replicas compute in every step, where Algorithm 1 as printed waits for replica j
alone. With a period, t counts exchanges.

*Asynchronous* (Zhang et al. 2015, Algorithm 1): a server has Wc. In every `period`-th step of its own a replica sends
it x = W_i and is sent the old Wc; both move by alpha (x - Wc), each on its side. A replica that dies leaves Wc where it
is.

*Momentum*: `nesterov` is the paper's EAMSGD (Algorithm 2), with the optimizer's momentum as its delta:

    v_i <- delta v_i - eta g_i(x_i + delta v_i)
    x_i <- x_i + v_i - alpha (x_i - Wc)

torch's SGD with Nesterov momentum holds W_i = x_i + delta v_i and b = -v_i / eta, so that x_i = W_i + eta delta b is
what the spring is tied to. Without `nesterov` a momentum is the optimizer's own affair, and the spring is tied to W_i.

Deviations: the exchange is in steps t with period | t + 1, where the paper's is in those with period | t, the first of
which would exchange what is alike. The consensus is Wc: of the asynchronous variant, as replica 0 last saw it. An
asynchronous checkpoint holds that and replica 0; when resumed, the other replicas start from Wc.

Cost per step, S bytes of weights: synchronous, all_reduce 2 (P-1)/P S / period; round-robin, a replica sends
S / (P period), none if P = 1; asynchronous, a replica sends (S + 8) / period and the server P S / period.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, PeerLostError, Work
from ..base import Batch, Cost, State, Sync, Trial, World, payload
from ..errors import LayoutError
from ..exchange.buckets import views_of
from ..exchange.collectives import Collective, Fabric
from ..exchange.collectives.base import times
from ..exchange.flat import check_one_dtype, flatten
from ..exchange.start_alike import start_alike
from ..exchange.survivors import isend_to, wait_for

BETA = 0.9  # P alpha where rho is not given
REQUEST = 8  # bytes


class Replica:
    """W_i, and the spring that ties it to a centre."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizer, rho: float | None, nesterov: bool, replicas: int
    ) -> None:
        self.weights = flatten(parameters, "easgd")  # W_i
        self.pull = torch.zeros_like(self.weights)  # alpha (x_i - Wc)
        self._parameters, self._optimizer = parameters, optimizer
        self._rho, self._nesterov, self._replicas = rho, nesterov, replicas
        if nesterov:
            for group in optimizer.param_groups:
                _check_nesterov(optimizer, group)
                group["nesterov"] = True

    @property
    def alpha(self) -> float:
        if self._rho is None:
            return BETA / self._replicas
        [group] = self._optimizer.param_groups
        return float(group["lr"]) * self._rho

    def position(self) -> Tensor:
        """[n]: x_i, W_i itself without Nesterov momentum."""
        if not self._nesterov:
            return self.weights
        [group] = self._optimizer.param_groups
        x = self.weights.clone()
        for view, parameter in zip(views_of(x, self._parameters), self._parameters, strict=True):
            b = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if b is not None:
                view.add_(b, alpha=float(group["lr"]) * group["momentum"])
        return x

    def stretch(self, x: Tensor, centre: Tensor) -> None:
        """pull = alpha (x - Wc)"""
        torch.sub(x, centre, out=self.pull).mul_(self.alpha)

    def step(self) -> None:
        """The optimizer's step, and the pull that was taken before it."""
        self._optimizer.step()
        self.weights.sub_(self.pull)


class EASGD(Sync):
    """Synchronous: all replicas exchange with the centre together; each has a copy of it."""

    weights_agree = False
    serial_alone = False  # the centre pulls a lone replica, too

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 4,
        nesterov: bool = False,
        collective: Collective | None = None,
    ) -> None:
        """`collective`: of pulls; None for the fabric's."""
        self.rho, self.period, self.nesterov = rho, period, nesterov
        self.collective = collective or Fabric()

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        self._replica = Replica(self._params, optimizer, self.rho, self.nesterov, comm.size)
        start_alike(parameters, comm)
        self._centre = self._replica.weights.clone()  # Wc, the same on all
        self._pulls = torch.empty_like(self._centre)  # sum_i alpha (W_i - Wc)
        self._t = 0

    @property
    def _is_due(self) -> bool:
        return (self._t + 1) % self.period == 0

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if self._is_due:
            self._replica.stretch(self._replica.position(), self._centre)
            with self.comm.timeline.named("pulls"):
                self._work = self.collective.all_reduce(self._pulls.copy_(self._replica.pull), self.comm)

    def update(self) -> None:
        if self._is_due:
            self._replica.step()
            self._work.wait()
            self._centre.add_(self._pulls)
        else:
            self.optimizer.step()
        self._t += 1

    def finish(self) -> None:
        self._replica.weights.copy_(self._centre)

    def consensus(self) -> dict[str, Tensor]:
        return dict(zip(self.parameters, views_of(self._centre, self._params), strict=True))

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t, "centre": self._centre}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._centre.copy_(state["centre"])

    def buffers(self) -> list[Tensor]:
        return [self._replica.pull, self._centre, self._pulls]

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "easgd")
        size = payload(parameters)
        return Cost(worker=times(1 / self.period, self.collective.traffic(size, world)), buffers=3 * size)


class RoundRobinEASGD(Sync):
    """One replica exchanges with the centre at a time; the centre goes round with the turn."""

    trial = Trial(of_64={"optimizer.lr": 0.01})  # who meets the centre once in 64 steps goes far
    weights_agree = False
    serial_alone = False  # the centre pulls a lone replica, too

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 1,
        nesterov: bool = False,
    ) -> None:
        self.rho, self.period, self.nesterov = rho, period, nesterov

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        self._replica = Replica(self._params, optimizer, self.rho, self.nesterov, comm.size)
        start_alike(parameters, comm)
        self._centre = self._replica.weights.clone()  # Wc, on the replica whose turn was last
        self._t = 0
        self._finished = False

    @property
    def _is_due(self) -> bool:
        return (self._t + 1) % self.period == 0

    @property
    def _turn(self) -> int:
        """Whose turn this exchange is, or the next one."""
        return self._t // self.period % self.comm.size

    @property
    def _holder(self) -> int:
        """Who has the centre until then."""
        return (self._turn - 1) % self.comm.size

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._work: Work | None = None
        if self._is_due and self._holder != self._turn:
            if self.comm.rank == self._holder:
                with self.comm.timeline.named("centre"):
                    self._work = self.comm.isend(self._centre, self._turn)
            elif self.comm.rank == self._turn:
                self._work = self.comm.irecv(self._centre, self._holder)

    def update(self) -> None:
        if self._work is not None:
            self._work.wait()
        if self._is_due and self.comm.rank == self._turn:
            self._replica.stretch(self._replica.position(), self._centre)
            self._replica.step()
            self._centre.add_(self._replica.pull)
        else:
            self.optimizer.step()
        self._t += 1

    def finish(self) -> None:
        self._replica.weights.copy_(self._current_centre())
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        if self._finished:
            return super().consensus()
        return dict(zip(self.parameters, views_of(self._current_centre(), self._params), strict=True))

    def _current_centre(self) -> Tensor:
        """A copy, on every replica."""
        centre = self._centre.clone()
        self.comm.broadcast(centre, src=self._holder).wait()
        return centre

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t, "centre": self._centre}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._centre.copy_(state["centre"])

    def buffers(self) -> list[Tensor]:
        return [self._replica.pull, self._centre]

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "easgd")
        size = payload(parameters)
        sent = size / (world.replicas * self.period) if world.replicas > 1 else 0
        return Cost(worker={"send": sent}, buffers=2 * size)


class Request(IntEnum):
    """What a replica asks of the server: a message of one int64."""

    EXCHANGE = 0  # my x follows; send me the centre as it was, and move it towards x
    DONE = 1  # I will ask no more; send me the centre once all are done


class AsyncEASGD(Sync):
    """Each replica exchanges at its own pace with a server that has the centre."""

    servers = 1
    synchronous = False
    weights_agree = False
    serial_alone = False  # the centre pulls a lone replica, too
    survives = True

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 4,
        nesterov: bool = False,
    ) -> None:
        self.rho, self.period, self.nesterov = rho, period, nesterov

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        self._server = comm.size - 1
        self._replica = Replica(self._params, optimizer, self.rho, self.nesterov, comm.size - 1)
        start_alike(parameters, comm)
        self._centre = self._replica.weights.clone()  # Wc; on a replica, as it last saw it
        self._request = torch.zeros(1, dtype=torch.int64)
        self._t = 0
        self._staleness: Counter[int] = Counter()

    # -- a replica

    def update(self) -> None:
        self._t += 1
        if self._t % self.period == 0:
            x = self._replica.position()
            with self.comm.timeline.named("push"):
                self._ask(Request.EXCHANGE)
                self.comm.send(x, self._server)
            self.comm.recv(self._centre, self._server)
            self._replica.stretch(x, self._centre)
            self._replica.step()
            self._centre.add_(self._replica.pull)
        else:
            self.optimizer.step()

    def finish(self) -> None:
        self._ask(Request.DONE)
        self.comm.recv(self._centre, self._server)
        self._replica.weights.copy_(self._centre)

    def consensus(self) -> dict[str, Tensor]:
        """The centre as this replica last saw it."""
        return dict(zip(self.parameters, views_of(self._centre, self._params), strict=True))

    def _ask(self, request: Request) -> None:
        self._request.fill_(request)
        self.comm.send(self._request, self._server)

    # -- the server

    def serve(self) -> None:
        replicas = range(self._server)
        self._version, self._seen = 0, [0] * len(replicas)  # exchanges so far; and when a replica had its last one
        going = set(replicas)
        while going:
            try:
                replica = self.comm.recv_any(self._request)
                if Request(int(self._request)) == Request.DONE:
                    going.discard(replica)
                else:
                    self._exchange(replica)
            except PeerLostError as error:
                if error.rank in (None, 0):
                    raise
                going.discard(error.rank)
        self._replica.weights.copy_(self._centre)
        with self.comm.ledger.aside():
            wait_for(isend_to(self._centre, set(replicas) - self.comm.lost(), self.comm))

    def _exchange(self, replica: int) -> None:
        x = self._replica.weights  # the server trains none of its own
        self.comm.recv(x, replica)
        self._replica.stretch(x, self._centre)
        with self.comm.timeline.named("fetch"):
            self.comm.send(self._centre, replica)
        self._centre.add_(self._replica.pull)
        self.made_at = self.comm.now()
        self._staleness[self._version - self._seen[replica]] += 1
        self._version += 1
        self._seen[replica] = self._version

    # -- state and measures

    def state_dict(self) -> State:
        """Of replica 0; its weights too, as those saved are the centre."""
        return {**super().state_dict(), "t": self._t, "weights": self._replica.weights.clone()}

    def load_state_dict(self, state: State) -> None:
        self._t = state["t"]
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._replica.weights.copy_(state["weights"])

    def buffers(self) -> list[Tensor]:
        return [self._replica.pull, self._centre]

    def report(self) -> dict[str, Any]:
        """`staleness`: of an exchange, how many of others there were since the replica's last one."""
        if self.comm.rank != self._server:
            return {}
        return {"staleness": dict(self._staleness), "lost": sorted(self.comm.lost())}

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        check_one_dtype(parameters, "easgd")
        size = payload(parameters)
        return Cost(
            worker={"send": (size + REQUEST) / self.period},
            server={"send": world.replicas * size / self.period},
            buffers=2 * size,
        )


def _check_nesterov(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Raises `LayoutError`."""
    if "nesterov" not in group or group.get("momentum", 0) == 0 or group.get("dampening", 0) != 0:
        raise LayoutError(
            f"sync.nesterov=true: {type(optimizer).__name__} has no momentum that could be Nesterov's; choose "
            "optimizer=sgd with optimizer.momentum=0.9, or sync.nesterov=false"
        )
