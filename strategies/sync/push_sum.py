"""Stochastic gradient push (SGP: Assran et al. 2019, "Stochastic Gradient Push for Distributed Deep Learning", ICML,
Algorithm 1; arXiv 1811.10792), on the push-sum protocol of Kempe et al. 2003.

Gossip on directed graphs. Beside its weights x_i each worker has a push-sum weight w_i, 1 at first, and the de-biased
z_i = x_i / w_i, which is the model: gradients are taken at z_i and it is what is evaluated. A step is

    x_i <- step(x_i, g_i(z_i))
    x_i <- sum_j p_ij x_j
    w_i <- sum_j p_ij w_j        the last two every `period` steps
    z_i <- x_i / w_i

with a column stochastic p: a worker shares itself out in equal parts among those it sends to and itself, and need not
know who else sends to them: see exchange/topology.py. So the sums of all x_i and of all w_i (which is n) are conserved,
and under zero gradients every z_i goes to the mean of what all started from. On the exponential graphs, where p is
doubly stochastic, all w_i stay 1; on one_peer_and_random they do not. A gradient moves z_i by eta / w_i: a graph in
which nobody need send to a worker lets its w_i become tiny, and training diverge; there, each has one sender at least.

Deviations from the paper: `step` is any optimizer's, on x_i; weight decay thus shrinks x_i and not z_i, which differ by
w_i. Nothing is overlapped with the gradient (the paper's tau is 0).

A worker that dies takes its x and w with it, and what was just under way to it. Those who know it send to it no more,
but to the others in larger parts: the rest go on with p column stochastic among them, which is all that push-sum needs.

The consensus is sum_i x_i / sum_i w_i over the living replicas. One worker sends nothing and is serial training, bit
for bit.

Cost per step, S bytes of weights: a worker sends |to| (S + 8) / period (x and w): |to| is 1 on the one-peer exponential
graph, 2 on one_peer_and_random (1 for n = 2), ceil(log2 n) on the exponential one.

Use it where links go one way, or neighbours change and no one knows how many listen: the push-sum weights keep the
mean right where those of sync=gossip would not.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.clip import Clip
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.survivors import isend_to, mean_of_living, recv_from, wait_for
from ...exchange.topology import Topology, neighbours, to_neighbours
from ..core.cost import Transfers, World, payload
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from .mean_of_replicas import MeanOfReplicas

WEIGHT = 8  # bytes of w


class PushSum(MeanOfReplicas):
    """Replicas step together and differ."""

    traits = SyncTraits(
        weights_agree=False,
        unaveraged="trains weights whose mean over workers is not what is evaluated",
        survives=True,
        drops_writes=True,
    )

    def __init__(
        self,
        topology: Literal["exponential", "one_peer_exponential", "one_peer_and_random"] = "one_peer_exponential",
        period: Annotated[int, Ge(1)] = 1,
        seed: Annotated[int, Ge(0)] = 0,
        clip: Clip | None = None,
    ) -> None:
        """`period`: steps between two rounds of mixing. `seed`: of what one_peer_and_random draws. `clip`: of a
        replica's own gradient; None for none.
        """
        self.topology: Topology = topology
        self.period, self.seed, self.clip = period, seed, clip

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        # the parameters: z, but x while the optimizer steps and while it is shared out
        self._z = flatten(parameters.values())
        room = len(self._z) if comm.size > 1 else 0
        self._x = self._z[:room].clone()
        self._received = torch.empty(room, dtype=self._z.dtype)
        self._w = torch.ones(1, dtype=torch.float64)
        self._t = 0

    def update(self) -> None:
        self._t += 1
        self.clip_gradients()
        if self.comm.size == 1:
            self.optimizer.step()  # x is z
            return
        x = self._z.copy_(self._x)
        self.optimizer.step()
        if self._t % self.period == 0:
            self._mix(x, round=self._t // self.period - 1)
        else:
            self._x.copy_(x)
        torch.div(self._x, self._w.to(self._x), out=self._z)

    def _mix(self, x: Tensor, round: int) -> None:
        near = neighbours(self.topology, self.comm.rank, self.comm.size, round, self.seed)
        to = [worker for worker in near.to if worker not in self.comm.lost()]
        p = 1 / (1 + len(to))
        w = self._w * p
        x.mul_(p)
        leaving = x.cpu()
        with self.comm.timeline.named("weights"):
            sending = isend_to(w, to, self.comm) + isend_to(leaving, to, self.comm)
        self._x.copy_(x)
        self._w.copy_(w)
        its_w = torch.empty_like(w)
        for j in near.of:
            if recv_from(its_w, j, self.comm) and recv_from(self._received, j, self.comm):
                self._x += self._received.to(x.device)
                self._w += its_w
        wait_for(sending)

    def mean(self) -> Tensor:
        """Returns sum_i x_i / sum_i w_i over the living replicas."""
        return mean_of_living(self._x, float(self._w), self.comm)

    def state_dict(self) -> State:
        """z is saved with the parameters; x, as z times w is not x to the last bit."""
        return {**super().state_dict(), "t": self._t, "x": self._x, "w": self._w}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._x.copy_(state["x"])
        self._w.copy_(state["w"])

    def buffers(self) -> list[Tensor]:
        return [self._x, self._received]

    def report(self) -> Measures:
        return {"lost": sorted(self.comm.lost())}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size, replicas = payload(parameters), world.replicas
        sent = to_neighbours(self.topology, replicas, size + WEIGHT, self.period, sum(x.numel() for x in parameters))
        return Transfers([sent], buffers=2 * size if replicas > 1 else 0)
