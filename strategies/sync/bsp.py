"""Bulk synchronous parallel training by all-reduce (synchronous data parallelism).

Every replica j computes the mean gradient g_j of its n_j samples; everyone steps with

    g = sum_j (n_j / sum_i n_i) g_j

which is the gradient of the one batch that all of them together hold: K replicas with batch B equal one worker with
batch K B. Replicas start alike (replica 0 broadcasts) and stay bit-identical.

`NaiveBSP` says just that. `BSP` is Algorithm 1 of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training" (arXiv 2006.15704), and equals it.

Deviations from the paper: gradients are scaled as they enter their bucket, not afterwards, so that uneven batches are
weighted; the reduced bucket *is* the gradient that the optimizer sees, which saves copying it back; the bitmap of used
parameters travels only with `find_unused`.

With `shard` replicas share out optimizer state, and gradients; the all-reduce becomes a reduce-scatter and an
all-gather (exchange/sharded_gradients.py).

With an `aggregate` other than the mean every worker gets the gradients of all, and all compute what the rule makes of
them (exchange/joining.py); with an `attack` some send others than theirs. There is one bucket then, so that both see a
gradient whole, and nothing travels during backward.

With `compress` each bucket leaves as its message (exchange/channel.py), and what all get is the sum of the decoded
ones: replicas stay bit-identical, and differ from serial training by what messages leave out. What error feedback keeps
is a replica's own. One replica alone sends nothing and compresses nothing.

Cost per step and worker, S bytes of gradient, K replicas: what the collective states for a sum of S bytes, which is
2 (K-1)/K S; with `find_unused` S grows by four bytes a parameter tensor. With `compress` it is what
exchange/channel.py states, of each bucket. Where all get the gradients of all, send (K-1) S and all_gather 8 (K-1).

Use it first, and as what all else is compared with: workers alike in speed, a network that sums gradients in about
the time of a backward pass. `bsp_naive` shows what buckets and overlap are worth, and is right for nothing else.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...conf.errors import ConfigError
from ...cost.transfer import Transfer, passes
from ...exchange import rehearsal
from ...exchange.aggregate import Aggregator
from ...exchange.attack import Attack
from ...exchange.buckets import Bucket, allocate, grouped
from ...exchange.channel import Channel, check_adds_up, held, notes_on_sums, sums
from ...exchange.client.base import dense_gradient
from ...exchange.clip import Clip, Shared
from ...exchange.collectives import Collective, Fabric
from ...exchange.compress import Compressor, Dense, Vector, vector_of
from ...exchange.elementwise import check_elementwise
from ...exchange.finishing import Finished
from ...exchange.joining import Joining
from ...exchange.privacy import Privacy
from ...exchange.privacy.dp_sgd import of_samples
from ...exchange.reducer import Reducer
from ...exchange.sharded_gradients import SHARDS, Layout, ShardedGradients, lay_out
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.clip import NORM
from ..core.cost import Memory, Transfers, World, payload
from ..core.state import State
from ..core.sync import Measures, Sync, SyncTraits

SHARE = 8  # bytes: a float64, or an int64


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
        self.drop_gradients()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        vectors = [vector_of([each]) for each in parameters]
        return Transfers(sums(Dense(), self.collective, vectors, world))


class BSP(Sync):
    """Algorithm 1: buckets are all-reduced in order while backward goes on."""

    traits = SyncTraits(steps_together=True, may_begin_anew=True)

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
        """`find_unused`: walk the graph before backward, so that the bucket of an unused parameter need not wait for
        the end of backward, and leave alone what no replica used (no weight decay, no momentum: as in serial training).
        `shard`: what replicas share out instead of each holding it whole; see exchange/sharded_gradients.py.
        `compress`: None for no compression. `collective`: None for the fabric's. `aggregate`, `attack`: None for the
        mean, and for nobody. `clip`: of what all step with, the mean or what the rule makes; None for none. `privacy`:
        of each sample; None for nobody's. Raises `ConfigError`.
        """
        self.capacity, self.first = int(bucket_mb * 2**20), int(first_bucket_mb * 2**20)
        self.find_unused, self.shard = find_unused, shard
        self.compress, self.collective, self.clip = compress or Dense(), collective or Fabric(), clip
        self.privacy = of_samples(privacy)
        check_adds_up(self.compress, self.collective)
        self.joining = Joining(aggregate, attack)
        self.traits = replace(
            self.traits,
            state_agrees=not self.compress.keeps,
            entrywise=self.compress.traits.entrywise,
            exact=self.compress.traits.lossless and self.joining.plain,
            shows_mean=shard == "none" and isinstance(self.compress, Dense) and self.joining.plain,
            whole_rows=self.joining.whole_rows,
            max_parts=1 if self.joining.whole_rows else None,
        )
        if not self.joining.plain:
            self.capacity = self.first = sys.maxsize  # one bucket: a rule, and who lies, sees a gradient whole
        self.joining.check_exchange(self.compress, self.collective)
        if self.privacy is not None and not (self.joining.plain and isinstance(self.compress, Dense)):
            streaming = self.joining.aggregate.traits.streaming
            by = "compress" if self.joining.plain else "attack" if streaming else "aggregate"
            raise ConfigError(
                f"privacy, {by}: each replica adds its share of the noise, which hides a sample in the sum of all "
                "gradients and in nothing else that is made of them; choose compress=none, aggregate=mean and "
                "attack=none, or privacy=none"
            )
        if shard != "none" and not self.joining.plain:
            raise ConfigError(
                f"sync.shard={shard}: a replica gets the sum of its own shard alone, not the others' gradients; choose "
                "aggregate=mean and attack=none, or sync.shard=none"
            )
        if shard != "none" and not isinstance(self.compress, Dense):
            raise ConfigError(
                f"sync.shard={shard}: a replica gets the sum of its own shard alone, which no compressor gives; "
                "choose compress=none or sync.shard=none"
            )
        if shard != "none" and not isinstance(self.collective, Fabric):
            raise ConfigError(
                f"sync.shard={shard}: a replica gets the sum of its own shard alone, which is no all-reduce; choose "
                "collective=fabric or sync.shard=none"
            )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.compress.check_optimizer(optimizer)
        if self.shard != "none":
            check_elementwise(optimizer, f"sync.shard={self.shard}", "sync.shard=none")

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        self._params = list(parameters.values())
        members = grouped(self._params, self.capacity, self.first)
        vectors = {key_of(indices): vector_of(self._params[i] for i in indices) for indices in members}
        self._channel = Channel(self.compress, comm, vectors, self.collective)
        self._buckets: list[Bucket] = []
        self._works: list[Work] = []
        self._shards: ShardedGradients | None = None
        self._reducer: Reducer[Any] | None = None
        self._rows: Tensor | None = None  # [replicas, entries], where they must all be there
        # what is compressed is never sent in vain: error feedback would keep of an overflow what it left out
        self._waits = self.setting.scaled and not isinstance(self.compress, Dense)
        if comm.size == 1:
            return
        if self.shard == "none":
            self._buckets = allocate(self._params, self.capacity, self.first)
            launch = self._all_reduce if self.joining.plain else self._leave_to_update
            self._reducer = Reducer(parameters, self._buckets, launch, self.find_unused)
            if not self.joining.streaming:
                [bucket] = self._buckets
                self._rows = bucket.flat.new_empty(comm.size, len(bucket.flat))
        else:
            self.check_optimizer(optimizer)
            frees = self.shard == "gradients"
            self._shards = ShardedGradients(self._params, optimizer, comm, self.capacity, self.first, frees)
            self._reducer = Reducer(
                parameters, self._shards.buckets, self._shards.reduce_scatter, self.find_unused, frees=True
            )

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share, self._step, self._finished = batch.share, batch.step, False
        if self._reducer is not None:
            self._reducer.begin(batch.share if self.joining.plain else 1.0)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        if self._reducer is not None:
            self._reducer.before_backward(roots, last and not self._waits)

    def _all_reduce(self, bucket: Bucket) -> None:
        with self.comm.timeline.named("gradients"):
            self._works.append(self._channel.all_reduce(key_of(bucket.parameters), bucket.flat))

    def _leave_to_update(self, bucket: Bucket) -> None:
        """It is joined once backward is over."""

    def _join(self, gradient: Tensor) -> None:
        """[n], of this replica -> what the rule makes of those of all, in place."""
        key = key_of(self._buckets[0].parameters)
        sent = self.joining.sent(gradient, self.comm.rank, self.comm.size, self._step)
        if self._rows is None:
            gradient.copy_(sent).mul_(self._share)
            self._channel.all_reduce(key, gradient).wait()
            return
        self._channel.all_gather(key, sent, self._rows, self.joining.read)
        shares = self.comm.all_gather(torch.tensor([self._share], dtype=torch.float64)).flatten().tolist()
        of_all = range(self.comm.size), dict(enumerate(shares))
        joined = self.joining.join_in_place(self._rows, *of_all, self.comm.size, self._step)
        gradient.copy_(self._channel.finish(key, joined))

    def finish_gradients(self) -> Finished:
        if self.shard != "none":
            return Finished.UNSENT if self._shards is None else Finished.SHARDED
        self._finish()
        return Finished.MEAN

    def _finish(self) -> None:
        if self._reducer is not None and not self._finished:
            self._reducer.finish()
            if not self.joining.plain:
                with self.comm.timeline.named("gradients"):
                    self._join(self._buckets[0].flat)
            if self.find_unused:
                self._works.append(self.collective.all_reduce(self._reducer.used, self.comm))
            for work in self._works:
                work.wait()
            self._works.clear()
            unused = {i for i, each in enumerate(self._params) if not each.requires_grad}  # frozen since, on all alike
            if self.find_unused:
                unused |= {i for i, used in enumerate(self._reducer.used.tolist()) if not used}
            if self._shards is not None:
                self._shards.land(unused)
            for bucket in self._buckets:
                for i in bucket.parameters:
                    # a tensor of its own: a script may give it other memory (p.grad.data = ...)
                    self._params[i].grad = None if i in unused else bucket.views[i].detach()
        self._finished = True

    def update(self) -> None:
        self._finish()
        self.clip_gradients()
        self.optimizer.step()
        if self._shards is not None:
            self._shards.all_gather()

    def skip(self) -> None:
        """What is under way is sent to its end, as on replicas that have not begun to, and dropped."""
        if self._reducer is not None and not self._waits:
            self._reducer.finish()
            for work in self._works:
                work.wait()
            self._works.clear()
            if self._shards is not None:
                self._shards.land({})
        self.drop_gradients()

    def clip_gradients(self) -> None:
        if self._shards is None or self.clip is None:
            super().clip_gradients()
            return
        names = list(self.parameters)
        pieces = {names[i]: gradient for i, gradient in self._shards.gradients().items()}
        self.clip.apply(pieces, self.comm.board.rank, self.setting.counted, Shared(self.comm))

    def prune(self, gone: Mapping[str, Tensor]) -> None:
        if not self.compress.traits.of_kept or self.comm.size == 1:
            return
        pruned = {id(self.parameters[name]): each for name, each in gone.items()}
        kept: dict[str, Tensor] = {}
        for bucket in self._buckets:
            own = [self._params[i] for i in bucket.parameters]
            kept[key_of(bucket.parameters)] = ~torch.cat(
                [pruned.get(id(each), torch.zeros_like(each, dtype=torch.bool)).flatten() for each in own]
            )
        self._channel.keep(kept)

    def gradients(self) -> dict[str, Tensor] | None:
        return super().gradients() if self.shard == "none" else None  # else in shares

    def state_dict(self) -> State:
        if self._shards is not None:
            return self._shards.optimizer.state_dict()
        kept = {"channel": self._channel.state_dict(), "joining": self.joining.state_dict()}
        return super().state_dict() | {name: state for name, state in kept.items() if state}

    def load_state_dict(self, state: State) -> None:
        if self._shards is not None:
            self._shards.optimizer.load_state_dict(state)
            return
        super().load_state_dict(state)
        self._channel.load_state_dict(state.get("channel", {}))
        self.joining.load_state_dict(state.get("joining", {}))

    def buffers(self) -> list[Tensor]:
        if self._shards is not None:
            return self._shards.buffers()
        rows = [] if self._rows is None else [self._rows]
        return [*(bucket.flat for bucket in self._buckets), *rows, *self._channel.buffers()]

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        if self.shard == "none" or replicas == 1:
            return held
        return self._layout(parameters, replicas).memory(held, parameters, self.setting.backward_passes)

    def measured(self, held: Memory) -> Memory:
        if self._shards is None or self._reducer is None:
            return held
        return {**held, "gradients": self._shards.gradient_bytes() + self._reducer.peak}

    def report(self) -> Measures:
        return {"buckets": len(self._buckets) if self._shards is None else len(self._shards.buckets)}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        self.joining.check(world.replicas)
        self.joining.check_not_alone(world.replicas)
        size, replicas = payload(parameters), world.replicas
        found = self.collective.transfers(4 * len(parameters), world) if self.find_unused else []
        if self.shard != "none" and replicas > 1:
            layout = self._layout(parameters, replicas)
            sharded = [
                Transfer("reduce_scatter", replicas, layout.traffic()["reduce_scatter"]),
                Transfer("all_gather", replicas, layout.traffic()["all_gather"]),
            ]
            norm = Fabric().transfers(NORM, world) if self.clip is not None and self.clip.measures else []
            return Transfers([*sharded, *found, *norm], layout.buffers(), unpredicted=self._unpredicted(replicas, []))
        buckets = self._vectors(parameters)
        if len(buckets) > 1 and not self.joining.plain:
            dtypes = ", ".join(sorted(str(vector.dtype) for vector in buckets))
            raise ConfigError(
                "aggregate, attack: they see a gradient as one vector of one dtype, and the model has "
                f"{dtypes}; choose aggregate=mean and attack=none"
            )
        if self.joining.streaming:
            sent = sums(self.compress, self.collective, buckets, world)
        else:
            rows = (replicas - 1) * self.compress.mean_nbytes(buckets[0], world.steps)
            share = Transfer("all_gather", replicas, (replicas - 1) * SHARE)
            rows = Transfer("all_gather", replicas, rows, primitive="send", kernels=passes("mul_", buckets[0].n))
            sent = [rows, share]
        if not self.joining.plain and replicas > 1:
            rule = partial(rehearsal.of_rule, self.joining, buckets[0], replicas)
            sent[0] = replace(sent[0], rehearse=rule)
        own = (size + held(self.compress, buckets)) if replicas > 1 else 0
        own += replicas * size if replicas > 1 and not self.joining.streaming else 0
        return Transfers(
            [*sent, *found],
            own,
            self.compress.varies(world.steps),
            self._unpredicted(replicas, buckets),
            hooked=len(parameters) if replicas > 1 else 0,
        )

    def zero_stage(self) -> int | None:
        return SHARDS.index(self.shard) if self.joining.plain and isinstance(self.compress, Dense) else None

    def _unpredicted(self, replicas: int, buckets: Sequence[Vector]) -> str:
        if self.shard != "none":
            return f"sync.shard={self.shard}: what its optimizer's shards take beside was not measured"
        if self.joining.plain:
            return self.compress.unpredicted if replicas > 1 else ""
        if not isinstance(self.compress, Dense):
            return "aggregate or attack with compress: the time to decode all rows is not modelled"
        return rehearsal.too_large(buckets[0], replicas)

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        own = self.joining.notes(self.compress, world.replicas) if world.replicas > 1 else []
        if not self.joining.streaming:
            return own
        return [*own, *notes_on_sums(self.compress, self.collective, self._vectors(parameters), world)]

    def _vectors(self, parameters: Sequence[Tensor]) -> list[Vector]:
        """That of each bucket."""
        return [vector_of(parameters[i] for i in members) for members in grouped(parameters, self.capacity, self.first)]

    def _layout(self, parameters: Sequence[Tensor], replicas: int) -> Layout:
        return lay_out(parameters, replicas, self.capacity, self.first, frees=self.shard == "gradients")


def key_of(members: Sequence[int]) -> str:
    """Under which a bucket of these parameters travels."""
    return str(members[0])
