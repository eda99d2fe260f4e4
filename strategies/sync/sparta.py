"""SPARTA: a random share of the weights is averaged every few steps (Beton et al. 2025, "Improving the Efficiency of
Distributed Training using Sparse Parameter Averaging", ICLR workshop on modularity for collaborative, decentralized and
continual deep learning).

Each of K replicas takes a step of its own, w_i <- step(w_i, g_i(w_i)), and then, every `period` steps,

    w_i[j] <- 1/K sum_l w_l[j]    for j in I,

where I is a set of k = max(1, round(p n)) of the n entries, the same on all replicas: it is drawn from (seed, round)
without replacement, so that no message tells it, and anew in each round. p = 1 is local SGD with rounds of `period`
steps. A round conserves the mean over the replicas of every entry, and never raises their variance about it. An entry
is averaged every `period` / p steps on average.

The optimizer's state (momentum) stays a replica's own. Deviations from the paper: exactly k entries are drawn, where
the published code draws each with probability p, so that the bytes of a round are known beforehand; the exchange is not
delayed; outer steps of DiLoCo in between are sync=sparta_diloco.

The consensus is the mean over the replicas. One replica sends nothing and is serial training, bit for bit.

Cost per step: the collective's for a sum of k entries, divided by `period`. Buffers: these k entries.

Use it where every step may send a little: a share of a hundredth or less keeps replicas near each other at a
hundredth of the bytes; sync=sparta_diloco keeps replicas of sync=diloco near each other by it.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.clip import Clip
from ...exchange.collectives import Collective
from ...exchange.exchange import Exchange
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.start_alike import start_alike
from ..core.cost import UNMEASURED, Transfers, World, spaced
from ..core.local_steps import LocalSteps
from ..core.state import State
from ..core.sync import SyncTraits
from .mean_of_replicas import MeanOfReplicas


class Sparta(MeanOfReplicas, LocalSteps):
    """Replicas step together and differ."""

    traits = SyncTraits(
        weights_agree=False,
        averages="own",
        entrywise=False,  # which entries are drawn depends on all that a worker holds
    )

    def __init__(
        self,
        share: Annotated[float, Gt(0), Le(1)] = 0.05,
        period: Annotated[int, Ge(1)] = 1,
        seed: Annotated[int, Ge(0)] = 0,
        collective: Collective | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`share`: p. `period`: steps between two rounds. `seed`: of the draws. `collective`: None for the fabric's.
        `clip`: of a replica's own gradient; None for none.
        """
        self.share, self.period, self.seed, self.clip = share, period, seed, clip
        self.exchange = Exchange(collective=collective, purpose="entries")

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # w_i
        start_alike(parameters, comm)
        self._drawn = self._weights.new_empty(self._count(len(self._weights)) if comm.size > 1 else 0)
        self.exchange.prepare(comm, {"entries": [self._drawn]})
        self._t = 0

    def _count(self, n: int) -> int:
        """k"""
        return max(1, round(self.share * n))

    def exchange_weights(self) -> None:
        self._t += 1
        if self._t % self.period == 0 and self.comm.size > 1:
            self._average(drawn(len(self._weights), len(self._drawn), self.seed, self._t // self.period - 1))

    def _average(self, entries: Tensor) -> None:
        """w_i[j] <- 1/K sum_l w_l[j]"""
        entries = entries.to(self._weights.device)
        torch.index_select(self._weights, 0, entries, out=self._drawn)
        self.exchange.mean("entries", self._drawn, 1, self.comm.size, self._t)
        self._weights.index_copy_(0, entries, self._drawn)

    def mean(self) -> Tensor:
        return self.exchange.uncompressed_mean(self._weights.clone(), 1, self.comm.size, self._t)

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t}

    def unjoinable(self, state: State) -> str:
        return ""  # new replicas begin from the consensus

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]

    def buffers(self) -> list[Tensor]:
        return [self._drawn]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size = self._count(sum(tensor.numel() for tensor in parameters)) * parameters[0].element_size()
        return Transfers(
            spaced(self.exchange.collective.transfers(size, world), self.period),
            buffers=size if world.replicas > 1 else 0,
            unpredicted=UNMEASURED,
        )


def drawn(n: int, k: int, seed: int, round: int) -> Tensor:
    """[k] of 0 ... n - 1, in order, none of them twice."""
    return torch.from_numpy(np.sort(np.random.default_rng((seed, round)).choice(n, k, replace=False, shuffle=False)))
