"""Elastic averaging SGD, synchronous (Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD",
NeurIPS, equations 3 and 4; arXiv 1412.6651; Sync EASGD in You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and
Knights Landing Clusters").

Springs tie the replicas' weights W_i to a centre Wc, which is what is trained (exchange/elastic.py):

    W_i <- W_i - eta (g_i + rho (W_i - Wc))
    Wc  <- Wc  + eta sum_i rho (W_i - Wc)

All springs pull in every `period`-th step, and none between. Every replica keeps a copy of Wc, and the pulls are
all-reduced. They depend on old weights alone, so they travel while the gradient is computed.

The consensus is Wc.

With `compress` the message of a pull travels (exchange/channel.py), and Wc moves by the sum of what is decoded, while
W_i gives the whole pull. What was left out is added to the next pull: sum_i W_i + Wc is conserved together with it.

Cost per step, S bytes of weights: the collective's for a sum of S bytes, which is 2 (P-1)/P S, divided by the period;
with `compress` what exchange/channel.py states.

Use it where replicas may explore on their own and meet every few steps: it sends 1/period of sync=bsp, and keeps
replicas apart, where sync=local_sgd makes them alike.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.notes import Note
from ...cost.transfer import passes
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.collectives import Collective
from ...exchange.compress import Compressor, vector_of
from ...exchange.elastic import Replica, check_elastic
from ...exchange.exchange import Exchange
from ...exchange.flat import check_one_dtype
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import Transfers, World, payload, spaced
from ..core.held import Held, HeldPoint
from ..core.state import State
from ..core.sync import Sync, SyncTraits


class EASGD(Sync):
    """Synchronous: all replicas exchange with the centre together; each has a copy of it."""

    traits = SyncTraits(
        weights_agree=False,
        sends_changes=True,
        averages="consensus",  # the centre, of which all have a copy
        serial_alone=False,  # the centre pulls a lone replica, too
    )

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 4,
        nesterov: bool = False,
        compress: Compressor | None = None,
        collective: Collective | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`compress`, `collective`: of pulls; None for no compression, and for the fabric's. `clip`: of a replica's own
        gradient; None for none. Raises `ConfigError`.
        """
        self.rho, self.period, self.nesterov, self.clip = rho, period, nesterov, clip
        self.exchange = Exchange(compress, collective, purpose="pulls")
        self.compress, self.collective, _ = self.exchange.parts

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elastic(optimizer, self.rho, self.nesterov)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        self._replica = Replica(self._params, optimizer, self.rho, self.nesterov, comm.size)
        start_alike(parameters, comm)
        self._centre = self._replica.weights.clone()  # Wc, the same on all
        self._pulls = torch.empty_like(self._centre)  # sum_i alpha (W_i - Wc)
        self.exchange.prepare(comm, {"pull": self._params})
        self._t = 0

    @property
    def _is_due(self) -> bool:
        return (self._t + 1) % self.period == 0

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if self._is_due:
            self._replica.elastic_force(self._replica.position(), self._centre)
            self._work = self.exchange.sum("pull", self._pulls.copy_(self._replica.pull))

    def update(self) -> None:
        self.clip_gradients()
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
        return {**super().state_dict(), "t": self._t, "centre": self._centre, **self.exchange.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._centre.copy_(state["centre"])
        self.exchange.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [self._replica.pull, self._centre, self._pulls, *self.exchange.buffers()]

    def shows(self) -> dict[str, Held]:
        return {"centre": HeldPoint(self._centre, ties=True), **self.exchange.shows()}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return self.exchange.notes([vector_of(parameters)], world)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        vectors = [vector_of(parameters)]
        first, *others = self.exchange.transfers(vectors, world)
        # the pull into what is sent; the spring, the step, the centre: one replica alone is pulled, too
        first = replace(first, kernels=passes("mul_", vectors[0].n) + passes("add_", vectors[0].n, 3))
        return Transfers(
            spaced([first, *others], self.period),
            buffers=3 * payload(parameters) + self.exchange.held(vectors, world.replicas),
            varies=self.compress.varies(world.steps),
            unpredicted=self.compress.unpredicted,
        )
