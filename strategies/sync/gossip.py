"""Gossip training: workers mix their weights with those of a few neighbours (D-PSGD: Lian et al. 2017, "Can
Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS, Algorithm 1; arXiv 1705.09056).

In every step each worker i takes a step of its own, W_i <- step(W_i, g_i(W_i)), and then, every `period` steps,

    W_i <- sum_j a_ij W_j

with the doubly stochastic a of a communication graph: see exchange/topology.py. So mixing conserves the mean of all W_i
and never raises their variance about it: a round leaves lambda_2^2 of it at most, lambda_2 the second largest singular
value of that round's a (on a ring of n > 2: 1/3 + 2/3 cos(2 pi / n)). Of n = 2^k workers, k rounds of the one-peer
exponential graph make the exact mean.

Deviations from the paper: it mixes while it computes the gradient, W_i <- sum_j a_ij W_j - eta g_i(W_i); here the step
is mixed too (adapt, then combine), which takes any optimizer. Its state (momentum) stays a worker's own.

A neighbour j that is dead is replaced by the worker itself, a_ii <- a_ii + a_ij, from the round on in which it sends no
more. Among the living a then stays row stochastic; in symmetric graphs (ring, matching) doubly, so that their mean is
conserved, but for the very round in which j died after it had sent to some and not to others.

The consensus is the mean over the living replicas. One worker sends nothing and is serial training, bit for bit.

Cost per step, S bytes of weights: a worker sends |to| S / period; |to| is min(2, n - 1) on a ring, ceil(log2 n)
on the exponential graph, 1 on the one-peer one, and (n - n mod 2) / n for a random matching (the mean over workers).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ..base import Cost, State, Sync, payload
from ..exchange.buckets import views_of
from ..exchange.flat import check_one_dtype, flatten
from ..exchange.survivors import hear, mean_of_living, post, settle
from ..exchange.topology import Topology, neighbours, out_degree


class Gossip(Sync):
    """Replicas step together and differ."""

    agrees = False
    survives = True

    def __init__(
        self,
        topology: Literal["ring", "exponential", "one_peer_exponential", "matching"] = "ring",
        period: Annotated[int, Ge(1)] = 1,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`period`: steps between two rounds of mixing. `seed`: of the matchings."""
        self.topology: Topology = topology
        self.period, self.seed = period, seed

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values(), "gossip")  # W_i
        room = len(self._weights) if comm.size > 1 else 0
        self._mixed = self._weights.new_empty(room)
        self._received = torch.empty(room, dtype=self._weights.dtype)
        self._t = 0
        self._finished = False

    def update(self) -> None:
        self.optimizer.step()
        self._t += 1
        if self._t % self.period == 0 and self.comm.size > 1:
            self._mix(round=self._t // self.period - 1)

    def _mix(self, round: int) -> None:
        near = neighbours(self.topology, self.comm.rank, self.comm.size, round, self.seed)
        a = 1 / (1 + len(near.of))
        leaving = self._weights.cpu()
        with self.comm.timeline.named("weights"):
            sending = post(leaving, near.to, self.comm)
        # W_i <- sum_j a_ij W_j
        torch.mul(self._weights, a, out=self._mixed)
        for j in near.of:
            heard = hear(self._received, j, self.comm)
            self._mixed.add_(self._received.to(self._mixed.device) if heard else self._weights, alpha=a)
        settle(sending)
        self._weights.copy_(self._mixed)

    def consensus(self) -> dict[str, Tensor]:
        """The mean over the living replicas."""
        if self._finished or self.comm.size == 1:
            return super().consensus()
        mean = mean_of_living(self._weights, 1.0, self.comm)
        return dict(zip(self.parameters, views_of(mean, list(self.parameters.values())), strict=True))

    def finish(self) -> None:
        if self.comm.size > 1:
            self._weights.copy_(mean_of_living(self._weights, 1.0, self.comm))
        self._finished = True

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]

    def buffers(self) -> list[Tensor]:
        return [self._mixed, self._received]

    def report(self) -> dict[str, Any]:
        return {"lost": sorted(self.comm.lost())}

    def cost(self, parameters: Sequence[Tensor], replicas: int, steps_per_epoch: int | None) -> Cost:
        check_one_dtype(parameters, "gossip")
        size = payload(parameters)
        return Cost(
            worker={"send": out_degree(self.topology, replicas) * size / self.period},
            buffers=2 * size if replicas > 1 else 0,
        )
