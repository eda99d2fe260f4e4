"""Bulk synchronous parallel training by all-reduce (synchronous data parallelism).

Every replica j computes the mean gradient g_j of its n_j samples; everyone steps with

    g = sum_j (n_j / sum_i n_i) g_j

which is the gradient of the one batch that all of them together hold: K replicas with batch B equal one worker with
batch K B. Replicas start alike (replica 0 broadcasts) and stay bit-identical.

This is Algorithm 1 of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (arXiv
2006.15704): buckets are all-reduced in order while backward goes on. bsp_naive.py says the same in its plainest form,
and equals it. Deviations from the paper: gradients are scaled as they enter their bucket, not afterwards, so that
uneven batches are weighted; the reduced bucket *is* the gradient that the optimizer sees, which saves copying it back;
the bitmap of used parameters travels only with `find_unused`.

What becomes of a full bucket is a reduction: its sum, here; with `shard` a reduce-scatter (sharded_bsp.py); with an
`aggregate` or an `attack` what a robust rule makes of the gradients of all (robust_bsp.py). With `compress` each bucket
leaves as its message (exchange/channel.py), and all get the sum of the decoded ones: replicas stay bit-identical, and
differ from serial training by what messages leave out. What error feedback keeps is a replica's own. One replica alone
sends nothing and compresses nothing.

Cost per step and worker, S bytes of gradient, K replicas: what the collective states for a sum of S bytes, which is
2 (K-1)/K S; with `find_unused` S grows by four bytes a parameter tensor. With `compress` it is what
exchange/channel.py states, of each bucket.

Use it first, and as what all else is compared with: workers alike in speed, a network that sums gradients in about
the time of a backward pass. `bsp_naive` shows what buckets and overlap are worth, and is right for nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...compat.optimizers import step
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...cost.transfer import Transfer
from ...exchange.aggregate import Aggregator
from ...exchange.attack import Attack
from ...exchange.buckets import Bucket, allocate, grouped, key_of
from ...exchange.channel import held
from ...exchange.clip import Clip, Shared
from ...exchange.collectives import Collective, Fabric
from ...exchange.compress import Compressor, Dense, Vector, vector_of
from ...exchange.exchange import Exchange
from ...exchange.finishing import Finished
from ...exchange.privacy import Privacy
from ...exchange.privacy.dp_sgd import of_samples
from ...exchange.reducer import Reducer, Reduction
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.clip import NORM
from ..core.cost import Memory, Transfers, World, payload
from ..core.held import Held
from ..core.protocols import own_gradients, shown_by
from ..core.state import State
from ..core.sync import Measures, Sync, SyncTraits, drop_gradients
from .robust_bsp import WHOLE, RobustReduction
from .sharded_bsp import SHARDS, Layout, ShardedReduction, check_elements, lay_out, needs_of


class SummedReduction(Reduction):
    """Sums each bucket while backward goes on."""

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Exchange, capacity: int, first: int) -> None:
        super().__init__(parameters, allocate(parameters, capacity, first))
        self._exchange, self._works = exchange, list[Work]()

    def launch(self, bucket: Bucket) -> None:
        self._works.append(self._exchange.sum(bucket.key, bucket.flat))

    def close(self, share: float, step: int) -> list[Work]:
        works, self._works = self._works, []
        return works

    def drop(self) -> None:
        for work in self.close(0.0, 0):
            work.wait()


class BSP(Sync):
    """Algorithm 1: buckets are all-reduced in order while backward goes on."""

    traits = SyncTraits(steps_together=True, may_begin_anew=True, plain_mean=True)

    def __init__(
        self,
        bucket_mb: Annotated[float, Gt(0)] = 25.0,
        first_bucket_mb: Annotated[float, Gt(0)] = 1.0,
        find_unused: bool = False,
        shard: Literal["none", "optimizer", "gradients"] = "none",
        compress: Compressor | None = None,
        collective: Collective | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        clip: Clip | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        """Raises `ConfigError`.

        Args:
            bucket_mb: MiB of a bucket.
            first_bucket_mb: MiB of the first one, so that communication starts early.
            find_unused: Walk the graph before backward, so that the bucket of an unused parameter need not wait for
                the end of backward, and leave alone what no replica used, as in serial training.
            shard: What replicas share out instead of each holding it whole.
            compress: None sends gradients as they are.
            collective: None takes the fabric's.
            aggregate: None takes the mean.
            attack: None: every replica is honest.
            clip: Clips what all step with, the mean or what the aggregate makes.
            privacy: Hides each sample.
        """
        self.capacity, self.first = int(bucket_mb * 2**20), int(first_bucket_mb * 2**20)
        self.find_unused, self.shard = find_unused, shard
        self.exchange = Exchange(compress, collective, aggregate, attack)
        self.compress, self.collective, self.aggregation = self.exchange.parts
        self.clip, self.privacy = clip, of_samples(privacy)
        self.traits = replace(
            self.traits,
            keeps_pieces=shard != "none",
            waits_in_passes=shard == "gradients",
            state_agrees=not self.compress.keeps,
            exact=self.compress.traits.lossless and self.aggregation.plain,
            shows_mean=shard == "none" and isinstance(self.compress, Dense) and self.aggregation.plain,
            shows_gradients=shard == "none",
            requires=needs_of(shard),
        )
        if not self.aggregation.plain:
            self.capacity = self.first = WHOLE

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.compress.check_optimizer(optimizer)
        check_elements(self.shard, optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        self._params = list(parameters.values())
        members = grouped(self._params, self.capacity, self.first)
        self.exchange.prepare(comm, {key_of(indices): [self._params[i] for i in indices] for indices in members})
        # what is compressed is never sent in vain: error feedback would keep of an overflow what it left out
        self._waits = self.setting.scaled and not isinstance(self.compress, Dense)
        self._reduction = reduction = self._choose_reduction()
        self._reducer = None
        if comm.size > 1:
            self._reducer = Reducer(parameters, reduction.buckets, reduction.launch, self.find_unused, reduction.frees)

    def _choose_reduction(self) -> Reduction:
        if self.comm.size == 1:
            return Reduction()
        if self.shard != "none":
            self.check_optimizer(self.optimizer)
            frees = self.shard == "gradients"
            return ShardedReduction(self._params, self.optimizer, self.comm, self.capacity, self.first, frees)
        if not self.aggregation.plain:
            return RobustReduction(self._params, self.exchange)
        return SummedReduction(self._params, self.exchange, self.capacity, self.first)

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share, self._step, self._finished = batch.share, batch.step, False
        if self._reducer is not None:
            self._reducer.begin(batch.share if self.aggregation.plain else 1.0)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        if self._reducer is not None:
            self._reducer.before_backward(roots, last and not self._waits)

    def _finish(self) -> None:
        """g is what the optimizer steps with."""
        if self._reducer is None or self._finished:
            return
        self._reducer.finish()
        works = self._reduction.close(self._share, self._step)
        if self.find_unused:
            works.append(self.collective.all_reduce(self._reducer.used, self.comm))
        for work in works:
            work.wait()
        self._reduction.land(self._reducer.unused())
        self._finished = True

    def finish_gradients(self) -> Finished:
        if self.shard != "none":
            if self._reducer is None:
                return Finished.UNSENT
            self._reducer.finish()  # a worker without samples has sent nothing yet, and must before it asks others
            return Finished.SHARDED
        self._finish()
        return Finished.MEAN

    def update(self) -> None:
        self._finish()
        self.clip_gradients()
        step(self.optimizer)
        self._reduction.after_step()

    def skip(self) -> None:
        """Completes this step's all-reduces, also on replicas that have not begun them, and drops their results."""
        if self._reducer is not None and not self._waits:
            self._reducer.finish()
            self._reduction.drop()
        drop_gradients(self.parameters.values())

    def clip_gradients(self) -> None:
        pieces = self._reduction.pieces()
        if pieces is None or self.clip is None:
            super().clip_gradients()
            return
        names = list(self.parameters)
        own = {names[i]: gradient for i, gradient in pieces.items()}
        self.clip.apply(own, self.comm.key_values.rank, self.setting.counted, Shared(self.comm))

    def prune(self, gone: Mapping[str, Tensor]) -> None:
        if not self.compress.traits.of_kept:
            return
        pruned = {id(self.parameters[name]): each for name, each in gone.items()}
        for bucket in self._reduction.buckets:
            own = [self._params[i] for i in bucket.parameters]
            lost = [pruned.get(id(each), torch.zeros_like(each, dtype=torch.bool)).flatten() for each in own]
            self.exchange.keep(bucket.key, ~torch.cat(lost))

    def gradients(self) -> dict[str, Tensor] | None:
        return own_gradients(self) if self.shard == "none" else None  # else in shares

    # -- state, measures and what is stated

    def state_dict(self) -> State:
        return self._reduction.state_dict(self.optimizer) | self.exchange.state_dict()

    def unjoinable(self, state: State) -> str:
        """Returns "": each of K' replicas takes the mean of the K residuals r_i, so that the residual of the mean
        gradient stays 1/K sum_i r_i.
        """
        return ""

    def load_state_dict(self, state: State) -> None:
        self._reduction.load_state_dict(state, self.optimizer)
        self.exchange.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [*self._reduction.buffers(), *self.exchange.buffers()]

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        if self.shard == "none" or replicas == 1:
            return held
        return self._layout(parameters, replicas).memory(held, parameters, self.setting.backward_passes)

    def measured(self, held: Memory) -> Memory:
        return held if self._reducer is None else self._reduction.measured(held, self._reducer.peak)

    def shows(self) -> dict[str, Held]:
        return {**self.exchange.shows(), **shown_by(self._reduction)}

    def report(self) -> Measures:
        return {"buckets": len(self._reduction.buckets)}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return self.exchange.notes(self._vectors(parameters), world)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        self.aggregation.check(world.replicas)
        self.aggregation.check_not_alone(world.replicas)
        size, replicas = payload(parameters), world.replicas
        found = self.collective.transfers(4 * len(parameters), world) if self.find_unused else []
        if self.shard != "none" and replicas > 1:
            layout = self._layout(parameters, replicas)
            sharded = [
                Transfer("reduce_scatter", replicas, layout.traffic()["reduce_scatter"]),
                Transfer("all_gather", replicas, layout.traffic()["all_gather"]),
            ]
            norm = Fabric().transfers(NORM, world) if self.clip is not None and self.clip.measures else []
            return Transfers([*sharded, *found, *norm], layout.buffers(), unpredicted=self._unpredicted(replicas))
        buckets = self._vectors(parameters)
        if len(buckets) > 1 and not self.aggregation.plain:
            dtypes = ", ".join(sorted(str(vector.dtype) for vector in buckets))
            raise ConfigError(
                f"they see a gradient as one vector of one dtype, and the model has {dtypes}. Choose aggregate=mean "
                "and attack=none.",
                about=("aggregate", "attack"),
            )
        own = (size + held(self.compress, buckets)) if replicas > 1 else 0
        own += replicas * size if replicas > 1 and not self.aggregation.streaming else 0
        return Transfers(
            [*self.exchange.transfers(buckets, world), *found],
            own,
            self.compress.varies(world.steps),
            self._unpredicted(replicas),
            hooked=len(parameters) if replicas > 1 else 0,
        )

    def zero_stage(self) -> int | None:
        return SHARDS.index(self.shard) if self.aggregation.plain and isinstance(self.compress, Dense) else None

    def _unpredicted(self, replicas: int) -> Note | str:
        if self.shard != "none":
            return f"sync.shard={self.shard}: what its optimizer's shards take beside was not measured"
        return self.exchange.unpredicted(replicas)

    def _vectors(self, parameters: Sequence[Tensor]) -> list[Vector]:
        """Returns the vector of each bucket."""
        return [vector_of(parameters[i] for i in members) for members in grouped(parameters, self.capacity, self.first)]

    def _layout(self, parameters: Sequence[Tensor], replicas: int) -> Layout:
        return lay_out(parameters, replicas, self.capacity, self.first, frees=self.shard == "gradients")
