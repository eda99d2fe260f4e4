"""Elastic averaging SGD, synchronous (Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD",
NeurIPS, equations 3 and 4; arXiv 1412.6651; Sync EASGD in You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and
Knights Landing Clusters").

Springs tie the replicas' weights W_i to a centre Wc, which is what is trained (exchange/springs.py):

    W_i <- W_i - eta (g_i + rho (W_i - Wc))
    Wc  <- Wc  + eta sum_i rho (W_i - Wc)

All springs pull in every `period`-th step, and none between. Every replica keeps a copy of Wc, and the pulls are
all-reduced. They depend on old weights alone, so they travel while the gradient is computed.

The consensus is Wc.

Cost per step, S bytes of weights: all_reduce 2 (P-1)/P S / period.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ..base import Batch, Cost, State, Sync, World, payload
from ..exchange.buckets import views_of
from ..exchange.collectives import Collective, Fabric
from ..exchange.collectives.base import times
from ..exchange.flat import check_one_dtype
from ..exchange.springs import Replica
from ..exchange.start_alike import start_alike


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
