"""Elastic averaging SGD, round-robin (You, Buluc, Demmel 2017, "Scaling Deep Learning on GPU and Knights Landing
Clusters", Algorithm 1, Original EASGD; the springs are those of Zhang, Choromanska, LeCun 2015, exchange/elastic.py).

In step t only the spring of replica j = t mod P pulls:

    W_j <- W_j - eta (g_j + rho (W_j - Wc))
    Wc  <- Wc  + eta rho (W_j - Wc)

Wc goes round with the turn: the replica that had it last sends it to j (at first the last one has it), which is half of
what goes to and from a server. All replicas compute in every step, where Algorithm 1 as printed waits for replica j
alone. With a period, t counts exchanges.

The consensus is Wc.

Cost per step, S bytes of weights: a replica sends S / (P period), none if P = 1.

Use it to repeat You, Buluc and Demmel's figures, or where one message at a time is all that the master takes;
sync=easgd exchanges with all replicas at once and is faster elsewhere.
"""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...cost.transfer import Transfer
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.elastic import Replica, check_elastic
from ...exchange.flat import check_one_dtype
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Transfers, World, payload
from ..core.state import State
from ..core.sync import Sync, SyncTraits
from ..core.trial import Trial


class RoundRobinEASGD(Sync):
    """One replica exchanges with the centre at a time; the centre goes round with the turn."""

    trial = Trial(of_64={"optimizer.lr": 0.01})  # who meets the centre once in 64 steps goes far
    traits = SyncTraits(
        weights_agree=False,
        unaveraged="has its centre where it was last, and would have to send it around after each step",
        serial_alone=False,  # the centre pulls a lone replica, too
    )

    def __init__(
        self,
        rho: Annotated[float, Gt(0)] | None = None,
        period: Annotated[int, Ge(1)] = 1,
        nesterov: bool = False,
        clip: Clip | None = None,
    ) -> None:
        """`clip`: of a replica's own gradient; None for none."""
        self.rho, self.period, self.nesterov, self.clip = rho, period, nesterov, clip

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elastic(optimizer, self.rho, self.nesterov)

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
        """The replica whose turn this exchange is, or the next one."""
        return self._t // self.period % self.comm.size

    @property
    def _holder(self) -> int:
        """The replica that has the centre until then."""
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
        self.clip_gradients()
        if self._work is not None:
            self._work.wait()
        if self._is_due and self.comm.rank == self._turn:
            self._replica.elastic_force(self._replica.position(), self._centre)
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

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size, replicas = payload(parameters), world.replicas
        sent = size / replicas if replicas > 1 else 0
        pull = Transfer("broadcast", replicas, sent, every=self.period, primitive="send")
        return Transfers([pull], buffers=2 * size, unpredicted=UNMEASURED)
