"""Independent training: no communication, and one average at the end (Zinkevich et al. 2010, "Parallelized Stochastic
Gradient Descent", NeurIPS, Algorithm 3, SimuParallelSGD).

Every replica i starts alike and trains w_i alone on the n_i samples that it is dealt; in the end

    w = sum_i (n_i / n) w_i,     n = sum_i n_i.

It is local SGD with one round, without its barriers: what every way of communicating must beat. One replica alone is
serial training, bit for bit. A replica that dies is left out of the mean.

Deviations from the paper: the mean is weighted by samples (there, all have equally many); replicas share one order of
samples, each taking its part of every batch, where the paper deals each a random part of the data.

The consensus before the end is replica 0's own weights, and a checkpoint holds these alone: when resumed, the others
start from them too, with optimizers of their own that are new.

Cost per step: nothing. The average at the end is no part of training: every other replica sends its weights to replica
0, which answers with the mean.

Use it as the other end of the scale: no communication at all, which is as fast as workers are and the least that
averaging once can reach. It suits convex problems, and data that are dealt alike.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.clip import Clip
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.start_alike import start_alike
from ...exchange.survivors import mean_of_living
from ..core.batch import Batch
from ..core.cost import Transfers, World
from ..core.state import State
from ..core.sync import Measures, Sync, SyncTraits
from ..core.trial import Trial


class Independent(Sync):
    """Replicas at their own pace, that meet at the end."""

    trial = Trial(of_64={"optimizer.lr": 0.01})  # the mean of models that went far apart is a poor one
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        unaveraged="joins the weights of all when training is over, and no average of them is known before",
        survives=True,
    )

    def __init__(self, clip: Clip | None = None) -> None:
        """`clip`: of a replica's own gradient; None for none."""
        self.clip = clip

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # w_i
        start_alike(parameters, comm)
        self._samples = 0  # n_i

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._samples += batch.size

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()

    def finish(self) -> None:
        if self.comm.size > 1:
            self._weights.copy_(mean_of_living(self._weights * self._samples, self._samples, self.comm))

    def state_dict(self) -> State:
        return {**super().state_dict(), "samples": self._samples}

    def load_state_dict(self, state: State) -> None:
        self._samples = state["samples"]
        if self.comm.rank == 0:
            super().load_state_dict(state)

    def report(self) -> Measures:
        return {"lost": sorted(self.comm.lost())}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        return Transfers()
