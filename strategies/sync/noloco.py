"""NoLoCo: outer steps of random pairs, without any all-reduce (Kolehmainen et al. 2025, "NoLoCo: No-all-reduce Low
Communication Training Method for Large Models", arXiv 2506.10911).

Worker i trains alone from its slow weights phi_i to theta_i, for `period` steps. Then the round's random pairs meet:
with D_j = theta_j - phi_j, and means over the pair of i,

    d_i <- alpha d_i + beta mean_j(D_j) - gamma (phi_i - mean_j(phi_j)),     phi_i <- phi_i + d_i,     theta_i <- phi_i.

The first two terms are heavy-ball momentum, the third draws a pair together. (The DiLoCo that the paper's authors
compare with has heavy-ball momentum as well: their code steps by gm <- mu gm - lr D and nothing more. DiLoCo itself, as
Douillard et al. published it and as sync=diloco is, has Nesterov's. So all pairs in one, which is two workers, is
DiLoCo only with alpha = 0.) alpha = 0 and beta = gamma = 1 is gossip in random pairs, bit for bit.

A pair conserves the sum of its phi_i but for what momentum and training add: sum phi_i <- sum phi_i + alpha sum d_i +
beta sum D_i, whatever gamma is. The paper asks for alpha < gamma < sqrt(2 + alpha^2) in pairs, which keeps the variance
over the workers bounded.

Deviations from the paper: a worker sends one vector in place of two, x_j = gamma phi_j + beta D_j, which is all that
the other needs, as

    phi_i <- (1 - gamma) phi_i + mean_j(x_j) + alpha d_i,

so that phi_j cannot travel ahead during the inner steps. The inner optimizer is the run's (the paper's is Adam), with a
state that stays a worker's own. Pairs are drawn from (seed, round): see exchange/topology.py. Whoever has no partner,
as one of an odd number, or as it is dead, makes the outer step by itself. Where a pipeline's stages are replicated
each stage has the same pairs; the paper routes samples through random stages, which is not done here.

The consensus is the mean of theta_i over the living. One worker alone makes outer steps, and sends nothing.

Cost per step, S bytes of weights, n workers: send (n - n mod 2) / n S / period, on average over the workers. Buffers:
phi and d, and with several workers the mean and what is received: 4 S.

Use it for what sync=diloco is for, where workers are so many or so far apart that an all-reduce waits for the slowest
link: pairs alone exchange.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.clip import Clip
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.start_alike import start_alike
from ...exchange.survivors import mean_of_living, mix
from ...exchange.topology import neighbours, to_neighbours
from ..core.cost import UNMEASURED, Transfers, World, payload
from ..core.local_steps import LocalSteps
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from .mean_of_replicas import MeanOfReplicas


class NoLoCo(MeanOfReplicas, LocalSteps):
    """Replicas step together and differ."""

    traits = SyncTraits(
        weights_agree=False,
        averages="own",
        serial_alone=False,  # the outer optimizer steps on a lone worker, too
        survives=True,
    )

    def __init__(
        self,
        period: Annotated[int, Ge(1)] = 4,
        outer_lr: Annotated[float, Gt(0)] = 0.7,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.5,
        pull: Annotated[float, Ge(0)] = 0.7,
        seed: Annotated[int, Ge(0)] = 0,
        clip: Clip | None = None,
    ) -> None:
        """`outer_lr`, `outer_momentum`, `pull`: beta, alpha and gamma. `seed`: of the pairs. `clip`: of a replica's own
        gradient; None for none.
        """
        self.period, self.seed, self.clip = period, seed, clip
        self.outer_lr, self.outer_momentum, self.pull = outer_lr, outer_momentum, pull

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # theta_i
        start_alike(parameters, comm)
        self._slow = self._weights.clone()  # phi_i
        self._way = torch.zeros_like(self._weights)  # d_i
        room = len(self._weights) if comm.size > 1 else 0
        self._mixed = self._weights.new_empty(room)
        self._received = torch.empty(room, dtype=self._weights.dtype)
        self._t = 0

    def exchange_weights(self) -> None:
        self._t += 1
        if self._t % self.period == 0:
            self._outer_step(self._mean_of_pair(self._t // self.period - 1))

    def _outer_step(self, mean: Tensor) -> None:
        """phi_i <- (1 - gamma) phi_i + mean_j(x_j) + alpha d_i"""
        stepped = mean.add_(self._slow, alpha=1 - self.pull).add_(self._way, alpha=self.outer_momentum)
        torch.sub(stepped, self._slow, out=self._way)
        self._slow.copy_(stepped)
        self._weights.copy_(stepped)

    def _mean_of_pair(self, round: int) -> Tensor:
        """mean_j(x_j), which may be written over."""
        # x_i = gamma phi_i + beta (theta_i - phi_i)
        x = self.outer_lr * self._weights
        if self.pull != self.outer_lr:
            x.add_(self._slow, alpha=self.pull - self.outer_lr)
        near = neighbours("matching", self.comm.rank, self.comm.size, round, self.seed)
        return mix(x, x, near, self.comm, self._received, self._mixed, purpose="pair") if near.of else x

    def mean(self) -> Tensor:
        """Returns the mean over the living replicas."""
        return mean_of_living(self._weights, 1.0, self.comm)

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t, "slow": self._slow, "way": self._way}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._slow.copy_(state["slow"])
        self._way.copy_(state["way"])

    def buffers(self) -> list[Tensor]:
        return [self._slow, self._way, self._mixed, self._received]

    def report(self) -> Measures:
        return {"lost": sorted(self.comm.lost())}

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        most = (2 + self.outer_momentum**2) ** 0.5
        if world.replicas == 1 or self.outer_momentum < self.pull < most:
            return []
        return [
            f"sync.pull={self.pull}: for replicas to stay together it should be above sync.outer_momentum="
            f"{self.outer_momentum} and below {most:.2f}"
        ]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size, replicas = payload(parameters), world.replicas
        return Transfers(
            [to_neighbours("matching", replicas, size, self.period)],
            buffers=(4 if replicas > 1 else 2) * size,
            unpredicted=UNMEASURED,
        )
