"""Elastic averaging SGD, asynchronous (Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD",
NeurIPS, Algorithms 1 and 2; arXiv 1412.6651).

A server has the centre Wc. In every `period`-th of its own steps replica i sends its weights x_i (exchange/elastic.py
says what these are under momentum), is answered with Wc as it is, and both move by what parted them, alpha = eta rho or
0.9 / P:

    W_i <- W_i - eta g_i - alpha (x_i - Wc)
    Wc  <- Wc + alpha (x_i - Wc)

The server takes one replica at a time, as they come; nobody waits for another's step. The staleness of an exchange is
the number of others' exchanges since the replica's last one. The consensus is Wc as replica 0 last saw it.

Cost per step, S bytes of weights: a worker sends (S + 8) / period, and the server S / period to each.

Use it where workers differ in speed and may explore on their own: each exchanges with the centre when it is ready, and
nobody waits for another. `easgd_momentum` adds Nesterov momentum, which the paper finds best with many workers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...cost.transfer import Transfer
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.elastic import Replica, check_elastic
from ...exchange.flat import check_one_dtype
from ...exchange.serving import Serving, message_of
from ...exchange.start_alike import start_alike
from ..core.cost import UNMEASURED, Memory, Transfers, World, payload
from ..core.held import Held, HeldPoint
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from ..core.with_servers import SyncWithServers

REQUEST = 8  # bytes


class ElasticRequest(IntEnum):
    """The kind of a replica's request to the server: a message of one int64."""

    EXCHANGE = 0  # my x follows; send me the centre as it was, and move it towards x
    DONE = 1  # I will ask no more; send me the centre once all are done
    FETCH = 2  # send me the centre, and leave it as it is


class AsyncEASGD(SyncWithServers):
    """Each replica exchanges at its own pace with a server that has the centre."""

    servers = 1
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        serial_alone=False,  # the centre pulls a lone replica, too
        survives=True,
    )

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 4,
        nesterov: bool = False,
        clip: Clip | None = None,
    ) -> None:
        """`clip`: of a replica's own gradient; None for none."""
        self.rho, self.period, self.nesterov, self.clip = rho, period, nesterov, clip
        if rho is not None:
            self.traits = replace(
                self.traits,
                one_rate=f"with sync.rho={rho:g} takes its rate on the server, which is in no step of a schedule",
            )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elastic(optimizer, self.rho, self.nesterov)

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
        self.clip_gradients()
        self._t += 1
        if self._t % self.period == 0:
            x = self._replica.position()
            with self.comm.timeline.named("push"):
                self._ask(ElasticRequest.EXCHANGE)
                self.comm.send(x, self._server)
            self.comm.recv(self._centre, self._server)
            self._replica.elastic_force(x, self._centre)
            self._replica.step()
            self._centre.add_(self._replica.pull)
        else:
            self.optimizer.step()

    def rejoin(self) -> None:
        """The replica begins anew at the centre."""
        with self.comm.timeline.named("fetch request"):
            self._ask(ElasticRequest.FETCH)
        self.comm.recv(self._centre, self._server)
        self._replica.weights.copy_(self._centre)
        self.optimizer.state.clear()

    def finish(self) -> None:
        self._ask(ElasticRequest.DONE)
        self.comm.recv(self._centre, self._server)
        self._replica.weights.copy_(self._centre)

    def consensus(self) -> dict[str, Tensor]:
        """The centre as this replica last saw it."""
        return dict(zip(self.parameters, views_of(self._centre, self._params), strict=True))

    def _ask(self, request: ElasticRequest) -> None:
        self._request.fill_(request)
        self.comm.send(self._request, self._server)

    # -- the server

    def serve(self) -> None:
        self._serving = serving = Serving(self.comm, self._server, self.traits.survives)
        self._version, self._seen = 0, [0] * self._server  # exchanges so far; and when a replica had its last one
        while serving.going:
            serving.hear(self._listen)
        self._replica.weights.copy_(self._centre)
        serving.send_last(self._centre)

    def _listen(self) -> None:
        replica = self.comm.recv_any(self._request)
        match message_of(ElasticRequest, int(self._request), replica):
            case ElasticRequest.EXCHANGE:
                self._exchange(replica)
            case ElasticRequest.FETCH:
                with self.comm.timeline.named("fetch"):
                    self.comm.send(self._centre, replica)
            case ElasticRequest.DONE:
                self._serving.going.discard(replica)

    def _exchange(self, replica: int) -> None:
        x = self._replica.weights  # the server trains none of its own
        self.comm.recv(x, replica)
        self._replica.elastic_force(x, self._centre)
        with self.comm.timeline.named("fetch"):
            self.comm.send(self._centre, replica)
        self._centre.add_(self._replica.pull)
        self.made_at = self.comm.now()
        self._staleness[self._version - self._seen[replica]] += 1
        self._version += 1
        self._seen[replica] = self._version

    # -- state and measures

    def state_dict(self) -> State:
        """Returns the state of replica 0. Its weights are in it, too, as the saved weights are the centre."""
        return {**super().state_dict(), "t": self._t, "weights": self._replica.weights.clone()}

    def load_state_dict(self, state: State) -> None:
        self._t = state["t"]
        if self.comm.rank == 0:
            super().load_state_dict(state)
            self._replica.weights.copy_(state["weights"])

    def buffers(self) -> list[Tensor]:
        return [self._replica.pull, self._centre]

    def report(self) -> Measures:
        """`staleness`: of an exchange, how many of others there were since the replica's last one."""
        if self.comm.rank != self._server:
            return {}
        return {"staleness": dict(self._staleness), "lost": sorted(self.comm.lost())}

    def shows(self) -> dict[str, Held]:
        """Returns the centre, of the server."""
        return {"centre": HeldPoint(self._centre, ties=True)} if self.comm.rank == self._server else {}

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """The centre, and what a replica is pulled by."""
        return {**held, "optimizer": 0, "buffers": 2 * payload(parameters)}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size = payload(parameters)
        return Transfers(
            [
                Transfer("send", 2, size, every=self.period),
                Transfer("send", 2, REQUEST, every=self.period, timed=False),
                Transfer("send", 2, size, every=self.period, from_server=True),
            ],
            buffers=2 * size,
            unpredicted=UNMEASURED,
        )
