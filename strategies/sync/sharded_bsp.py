"""BSP whose replicas share out optimizer state, and gradients: ZeRO stages 1 and 2 (sync=bsp with sync.shard).

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC20; arXiv
1910.02054), sections 5.1, 5.2 and 7.2. All K replicas hold the weights w, in flat buckets of K equal chunks; replica r
owns chunk r of each bucket. A step:

    g_r <- sum_j (n_j / n) g_j [chunk r]        reduce-scatter, bucket by bucket while backward goes on
    w_r <- step(w_r, g_r)                       the user's optimizer, which keeps state for w_r alone
    w   <- (w_0, ..., w_{K-1})                  all-gather

Stage 1 (`shard=optimizer`) keeps the buckets of gradients whole; the sum takes the place of its own chunk there.
Stage 2 (`shard=gradients`) keeps the sum alone: a bucket's memory goes to the next one as soon as it was
reduce-scattered, and one bucket travels while the next one fills.

The optimizer must be element-wise: a step on a piece of a tensor must be that piece of a step on the tensor (SGD, Adam,
Adagrad; not LARS, LAMB, Adafactor, Muon, which look at whole tensors). That is tried out beforehand, on a small matrix
(exchange/elementwise.py), as is whether it couples parameters; what shows itself only elsewhere (at another size, or
after many steps) is not found out. One that keeps parameters, or their ids, in a collection of its own is refused.

Deviations from the paper: chunks are of each bucket, not of all weights together, so that every bucket's sum has K
owners and the optimizer steps on one piece of each tensor that a chunk touches: several parameter groups, several
dtypes and parameters without a gradient need no care, and padding has no state. Weights are in one precision: the
optimizer steps on the weights themselves, there is no second, wider copy. Where a step has several backward passes
(micro-batches, of a pipeline or accumulated), gradients gather in full until the last one: to reduce-scatter each pass
would send them as many times.

Cost per step and worker, S bytes of gradient, padded to S' so that K divides each bucket, M state the optimizer would
have, P the largest gradient of one parameter (all of S with several backward passes), B the largest bucket:

    wire         reduce_scatter (K-1)/K S',  all_gather (K-1)/K S'; with `find_unused` BSP's bitmap too
    memory       weights S';  optimizer M/K, of S'
    stage 1      gradients S' + P;    buffers S', what arrives meanwhile
    stage 2      gradients S'/K + P;  buffers 3 B (the filling one; the travelling one, and what arrives of it)
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...exchange.buckets import grouped, views_of
from ...exchange.elementwise import check_elementwise, check_saved, check_uncoupled, check_unknowing
from ...exchange.reducer import Reduction
from ...exchange.sharded_optimizer import Piece, ShardedOptimizer
from ..core.cost import Memory, Traffic, payload
from ..core.held import Held, HeldCells
from ..core.state import State
from ..core.terms import ADDED_UP, FABRIC, HONEST, UNCOMPRESSED, Need

# -- what is refused


def needs_of(shard: str) -> tuple[Need, ...]:
    """Returns what sharing out gradients needs."""
    if shard == "none":
        return ()
    alone, key = "gives a replica the sum of its own shard alone", f"sync.shard={shard}"
    return tuple(Need(term, alone, key, "sync.shard=none") for term in (ADDED_UP, HONEST, UNCOMPRESSED, FABRIC))


def check_elements(shard: str, optimizer: Optimizer) -> None:
    """Raises `ConfigError` for an optimizer that is not element-wise, or goes by the places or ids of parameters."""
    if shard != "none":
        for check in (check_elementwise, check_uncoupled, check_unknowing, check_saved):
            check(optimizer, f"sync.shard={shard}", "sync.shard=none")


# -- who owns what


SHARDS = ("none", "optimizer", "gradients")  # sync.shard, by the stage of ZeRO


@dataclass(frozen=True)
class Extent:
    """A bucket of `entries`, of which each replica owns `chunk`, the last ones fewer."""

    parameters: list[int]
    dtype: torch.dtype
    entries: int
    chunk: int

    @property
    def chunk_bytes(self) -> int:
        return self.chunk * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The buckets, in the order of their way, and the cost."""

    replicas: int
    frees: bool  # stage 2
    extents: list[Extent]

    @property
    def shard(self) -> int:
        """Bytes of all weights that one replica owns, with padding: S'/K."""
        return sum(extent.chunk_bytes for extent in self.extents)

    def slots(self) -> dict[torch.dtype, tuple[int, int]]:
        """Stage 2: (buffers, entries of each) of a dtype, when buckets fill in order."""
        found: dict[torch.dtype, tuple[int, int]] = {}
        for extent in self.extents:
            before, largest = found.get(extent.dtype, (1, 0))
            found[extent.dtype] = min(before + 1, 3), max(largest, self.replicas * extent.chunk)
        return found

    def traffic(self) -> Traffic:
        each = (self.replicas - 1) * self.shard
        return {"reduce_scatter": each, "all_gather": each}

    def buffers(self) -> int:
        if not self.frees:
            return self.replicas * self.shard
        return sum(count * entries * dtype.itemsize for dtype, (count, entries) in self.slots().items())

    def memory(self, held: Memory, parameters: Sequence[Tensor], backward_passes: int) -> Memory:
        """See `StatesMemory`; of replica 0, which owns the most."""
        size, whole = payload(parameters), self.replicas * self.shard
        own = sum(min(extent.chunk, extent.entries) * extent.dtype.itemsize for extent in self.extents)
        loose = size if backward_passes > 1 else max(payload([parameter]) for parameter in parameters)
        return {
            **held,
            "parameters": held["parameters"] - size + whole,
            "gradients": (self.shard if self.frees else whole) + loose,
            "optimizer": -(-held["optimizer"] * own // size),
        }


def lay_out(parameters: Sequence[Tensor], replicas: int, capacity: int, first: int, frees: bool) -> Layout:
    """Returns the layout of buckets with these capacities in bytes."""
    extents: list[Extent] = []
    for members in grouped(parameters, capacity, first):
        entries = sum(parameters[i].numel() for i in members)
        extents.append(Extent(members, parameters[members[0]].dtype, entries, -(-entries // replicas)))
    return Layout(replicas, frees, extents)


# -- one replica's end


@dataclass
class ShardedBucket:
    """`weights` [K, chunk]; `gradient` [chunk], the sum over replicas; `filling` and `arriving` [K chunk].

    Stage 2 has the last two only while the bucket fills and travels, in `slots` that `supply` gives it.
    """

    extent: Extent
    weights: Tensor
    gradient: Tensor
    supply: Callable[["ShardedBucket"], None]
    filling: Tensor | None = None
    arriving: Tensor | None = None
    views: dict[int, Tensor] = field(default_factory=dict)
    slots: list[Tensor] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)

    @property
    def parameters(self) -> list[int]:
        return self.extent.parameters

    def view(self, i: int) -> Tensor:
        if self.filling is None:
            self.supply(self)
        return self.views[i]


class ShardedReduction(Reduction):
    """Takes over the parameters, which become views of flat buckets, and the optimizer, which steps on this replica's
    pieces of them from here on.
    """

    frees = True

    def __init__(
        self, parameters: list[nn.Parameter], optimizer: Optimizer, comm: Comm, capacity: int, first: int, frees: bool
    ) -> None:
        """`frees`: stage 2."""
        super().__init__(parameters)
        self._comm = comm
        layout = lay_out(parameters, comm.size, capacity, first, frees)
        self._keeps_sums = frees
        self._largest = {dtype: entries for dtype, (_, entries) in layout.slots().items()}
        self._slots: list[Tensor] = []
        self._free: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
        self._travelling: list[tuple[ShardedBucket, Work]] = []
        self.buckets: list[ShardedBucket] = [self._bucket(extent) for extent in layout.extents]
        self._pieces = {piece.index: piece for bucket in self.buckets for piece in self._pieces_of(bucket)}
        self._optimizer = ShardedOptimizer(optimizer, parameters, self._pieces, comm)

    def _bucket(self, extent: Extent) -> ShardedBucket:
        size, own = self._comm.size * extent.chunk, slice(self._comm.rank * extent.chunk, None)
        like = self._params[extent.parameters[0]].detach()
        weights = like.new_zeros(size)
        for i, view in zip(extent.parameters, self._views(weights, extent), strict=True):
            view.copy_(self._params[i].detach())
            self._params[i].data = view
        weights = weights.view(self._comm.size, extent.chunk)
        if self._keeps_sums:
            return ShardedBucket(extent, weights, like.new_zeros(extent.chunk), self._supply)
        filling = like.new_zeros(size)
        views = dict(zip(extent.parameters, self._views(filling, extent), strict=True))
        gradient, arriving = filling[own][: extent.chunk], torch.empty_like(filling)
        return ShardedBucket(extent, weights, gradient, self._supply, filling, arriving, views)

    def _views(self, flat: Tensor, extent: Extent) -> list[Tensor]:
        return views_of(flat[: extent.entries], [self._params[i] for i in extent.parameters])

    def _pieces_of(self, bucket: ShardedBucket) -> list[Piece]:
        """Returns the pieces of the parameters that this replica's chunk touches."""
        pieces: list[Piece] = []
        chunk, offset = bucket.extent.chunk, 0
        begin = self._comm.rank * chunk
        for i in bucket.parameters:
            size = self._params[i].numel()
            start, stop = max(begin, offset), min(begin + chunk, offset + size)
            if start < stop:
                weight, gradient = bucket.weights.view(-1)[start:stop], bucket.gradient[start - begin : stop - begin]
                if self._params[i].dim() == 0:  # so that state in its shape is taken for what it is
                    weight, gradient = weight[0], gradient[0]
                pieces.append(Piece(i, start - offset, stop - offset, nn.Parameter(weight), gradient))
            offset += size
        return pieces

    # -- a step

    def _supply(self, bucket: ShardedBucket) -> None:
        """Stage 2: memory for a bucket that begins to fill."""
        bucket.filling = self._slot(bucket)
        bucket.filling[bucket.extent.entries :].zero_()
        bucket.views = dict(zip(bucket.parameters, self._views(bucket.filling, bucket.extent), strict=True))

    def _slot(self, bucket: ShardedBucket) -> Tensor:
        """[K chunk]"""
        dtype, free = bucket.extent.dtype, self._free[bucket.extent.dtype]
        if not free:
            free.append(torch.empty(self._largest[dtype], dtype=dtype, device=bucket.weights.device))
            self._slots.append(free[-1])
        bucket.slots.append(free.pop())
        return bucket.slots[-1][: bucket.weights.numel()]

    def launch(self, bucket: ShardedBucket) -> None:
        """Reduce-scatters it."""
        if self._keeps_sums:
            self._arrive()
            bucket.arriving = self._slot(bucket)
        assert bucket.filling is not None and bucket.arriving is not None
        with self._comm.timeline.named("gradients"):
            work = self._comm.ireduce_scatter(bucket.filling, bucket.gradient, bucket.arriving)
        self._travelling.append((bucket, work))

    def _arrive(self) -> None:
        """Wait for the buckets that travel."""
        for bucket, work in self._travelling:
            work.wait()
            if self._keeps_sums:
                bucket.filling = bucket.arriving = None
                bucket.views = {}
                self._free[bucket.extent.dtype] += bucket.slots
                bucket.slots = []
        self._travelling.clear()

    def land(self, unused: Collection[int]) -> None:
        """The optimizer's gradients are g_r."""
        self._arrive()
        for i, piece in self._pieces.items():
            piece.weight.grad = None if i in unused else piece.gradient

    def drop(self) -> None:
        self.land(())

    def pieces(self) -> dict[int, Tensor]:
        return {i: piece.weight.grad for i, piece in self._pieces.items() if piece.weight.grad is not None}

    def after_step(self) -> None:
        """w <- (w_0, ..., w_{K-1})"""
        with self._comm.timeline.named("weights"):
            gathering = [self._comm.iall_gather(bucket.weights) for bucket in self.buckets]
        for work in gathering:
            work.wait()

    # -- what is shown, state and measures

    def shows(self) -> dict[str, Held]:
        """Returns what this replica has of each replica's chunk: w weights, g its own gradient, G the sum over
        replicas, o the optimizer's state.
        """
        size, own = self._comm.size, self._comm.rank
        has_sum = any(piece.weight.grad is not None for piece in self._pieces.values())
        has_own = any(bucket.filling is not None for bucket in self.buckets)
        texts = [
            "w" + ("G" if i == own and has_sum else "g" if has_own else "") + "o" * (i == own) for i in range(size)
        ]
        return {"chunks": HeldCells(tuple(texts), tuple(len(text) / 3 for text in texts))}

    def state_dict(self, optimizer: Optimizer) -> State:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: State, optimizer: Optimizer) -> None:
        self._optimizer.load_state_dict(state)

    def measured(self, held: Memory, peak: int) -> Memory:
        """Gradients are those in buckets (stage 1), or their sums (stage 2)."""
        own = [b.gradient if self._keeps_sums or b.filling is None else b.filling for b in self.buckets]
        return {**held, "gradients": payload(own) + peak}

    def buffers(self) -> list[Tensor]:
        if self._keeps_sums:
            return self._slots
        return [bucket.arriving for bucket in self.buckets if bucket.arriving is not None]
