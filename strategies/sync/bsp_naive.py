"""Bulk synchronous parallel training in its plainest form: one blocking all-reduce for each parameter after backward.

    g = sum_j (n_j / sum_i n_i) g_j

Every replica j steps with the mean of the gradients g_j, weighted by its n_j samples. Replicas stay bit-identical. This
is the synchronous SGD of Chen et al. 2016, "Revisiting Distributed Synchronous SGD" (arXiv 1604.00981), section 2.2,
without backup workers. bsp.py equals it and is faster.

Cost per step and worker, S bytes of gradient, K replicas: what the collective states for a sum of each parameter, which
is 2 (K-1)/K S in all.

Use it to see what buckets and overlap are worth. It is right for nothing else.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...exchange.channel import sums
from ...exchange.client.base import dense_gradient
from ...exchange.clip import Clip
from ...exchange.collectives import Collective, Fabric
from ...exchange.compress import Dense, vector_of
from ...exchange.finishing import Finished
from ...exchange.privacy import Privacy
from ...exchange.privacy.dp_sgd import of_samples
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import Transfers, World
from ..core.sync import Sync, SyncTraits, drop_gradients


class NaiveBSP(Sync):
    """One blocking all-reduce for each parameter after backward."""

    traits = SyncTraits(steps_together=True, shows_mean=True, may_begin_anew=True)

    def __init__(
        self, collective: Collective | None = None, clip: Clip | None = None, privacy: Privacy | None = None
    ) -> None:
        """`collective`: None for the fabric's. `clip`: of the mean gradient; None for none. `privacy`: None for none.

        Raises `ConfigError`.
        """
        self.collective, self.clip, self.privacy = collective or Fabric(), clip, of_samples(privacy)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share, self._finished = batch.share, False

    def finish_gradients(self) -> Finished:
        if self.comm.size > 1 and not self._finished:
            for parameter in self.parameters.values():
                # g = sum_j share_j g_j; a gradient that is not there counts as zero
                gradient = dense_gradient(parameter).mul_(self._share)
                with self.comm.timeline.named("gradient"):
                    self.collective.all_reduce(gradient, self.comm).wait()
        self._finished = True
        return Finished.MEAN

    def update(self) -> None:
        self.finish_gradients()
        self.clip_gradients()
        self.optimizer.step()

    def skip(self) -> None:
        drop_gradients(self.parameters.values())

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        vectors = [vector_of([each]) for each in parameters]
        return Transfers(sums(Dense(), self.collective, vectors, world))
