"""The layout of a transformer over devices: degrees, samples, and the parts that are recomputed, sharded or on the
host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .rules import CostError
from .transformer import Transformer

# selective: attention's scores; others: all but a layer's products, attention among it (JAX's
# checkpoint_dots_with_no_batch_dims); operators: every second product, and all kernels without products (torchtitan's
# "selective op")
Recompute = Literal["none", "selective", "others", "operators", "full"]
Offload = Literal["none", "optimizer", "all"]
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # by the name of `precision`


@dataclass(frozen=True)
class ReplicaLayout:
    """The layout of one replica's step, as far as its strategy decides it beside its degrees.

    Args:
        micro_batches: of a step.
        zero: the stage of ZeRO; None where the sync mode decides it.
        chunks, offload, sequence, shard_over: as those of `ParallelLayout`.
        recompute: layers are computed again in backward.
    """

    micro_batches: int
    zero: int | None = None
    shard_over: int | None = None
    chunks: int = 1
    recompute: bool = False
    offload: Offload = "none"
    sequence: bool = False


@dataclass(frozen=True)
class ParallelLayout:
    """Ranks go along tensor first, then context, then data, then stages."""

    batch: int  # samples of a step, of all replicas
    micro_batch: int
    data: int = 1
    tensor: int = 1
    stages: int = 1
    context: int = 1  # devices that share a sample's tokens
    chunks: int = 1  # of a stage (interleaved)
    zero: int = 0
    shard_over: int | None = None  # replicas that share ZeRO's shards, one after the other in rank; None: all of them
    recompute: Recompute = "none"
    recomputed: float = 1.0  # of the layers, the share that `recompute` is for
    offload: Offload = "none"
    fused: bool = False  # attention in one kernel
    sequence: bool = False  # norms and dropout cut by tokens (Korthikanti et al. 2022)
    overlap: bool = False  # sums of gradients, and gathers of ZeRO 3, go on while layers compute
    hides_sums: bool = False  # sums within layers go on, piece by piece, while the products beside them compute
    dtype: str = "float16"
    kept: str | None = None  # of weights and gradients, where it is another than that of the passes (autocast)
    wide_sums: bool = False  # gradients are sent in float32, however they are kept
    split_inputs: bool = False  # what full recomputation keeps is cut over `tensor` ("ZeRO", section 6)
    inputs_on_host: bool = False  # and goes to the host's memory
    experts: int = 1  # devices that share a layer's experts: along tensor, then context, then data
    gathers_keys: bool = False  # devices of a sample gather its keys and values, and do not pass them round a ring
    balanced: bool = True  # of a causal sample, each of them has a part of the start and one of the end
    grouped: bool = False  # a product of all experts of a device is one kernel, or a graph launches them

    def __post_init__(self) -> None:
        if not 0 < self.recomputed <= 1:
            raise CostError(f"recomputed={self.recomputed}: it is a share of the layers, above 0 and at most 1")
        for name in ("batch", "micro_batch", "data", "tensor", "stages", "context", "chunks", "experts"):
            if getattr(self, name) < 1:
                raise CostError(f"{name}={getattr(self, name)}: it is at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise CostError(f"zero={self.zero}: stages are 0, 1, 2 and 3")
        if self.batch < self.data * self.micro_batch:
            raise CostError(
                f"batch={self.batch}: {self.data} replicas with micro-batches of {self.micro_batch} "
                f"need at least {self.data * self.micro_batch} samples"
            )
        if self.experts > 1 and (self.experts % self.tensor or (self.tensor * self.replicas) % self.experts):
            raise CostError(
                f"experts={self.experts}: must be a multiple of tensor={self.tensor} and divide tensor x context x data"
            )
        if self.shard_over is not None and (self.replicas % self.shard_over or self.experts > 1):
            raise CostError(
                f"shard_over={self.shard_over}: must divide {self.replicas} replicas, and is not modelled with experts"
            )
        if self.chunks > 1 and self.stages == 1:
            raise CostError(f"chunks={self.chunks}: interleaving takes at least 2 stages")

    @property
    def micro_batches(self) -> int:
        """Returns the micro-batches of one replica in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def devices(self) -> int:
        return self.data * self.context * self.tensor * self.stages

    @property
    def entry(self) -> int:
        """Bytes of an activation, a weight and a gradient: those of half precision, but in float32."""
        return _bytes_of(self.dtype)

    @property
    def held(self) -> int:
        """Bytes of a weight and of a gradient, as they are kept and sent."""
        return self.entry if self.kept is None else _bytes_of(self.kept)

    @property
    def summed(self) -> int:
        """Bytes of a gradient as it is summed over replicas."""
        return 4 if self.wide_sums else self.held

    @property
    def casts(self) -> bool:
        """Returns whether each pass rounds the weights, and each gradient is widened again."""
        return self.held > self.entry

    @property
    def samples(self) -> float:
        """Returns the samples of a micro-batch, on one device."""
        return self.micro_batch / self.context

    @property
    def replicas(self) -> int:
        """Devices that hold the same weights, experts aside."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """Devices that hold the same experts."""
        return self.replicas if self.experts == 1 else self.tensor * self.replicas // self.experts


class HeldEntries(NamedTuple):
    """Entries of one device, and the devices that hold the same: how many, how far apart their ranks are, and how many
    of them share ZeRO's shards.
    """

    entries: float
    size: int
    stride: int
    shards: int


def shards_of(of: Transformer, layout: ParallelLayout, layers: float, ends: int) -> Sequence[HeldEntries]:
    """Returns what one device holds of `layers` layers and of `ends` matrices of the vocabulary; experts apart, where
    devices share them.
    """
    whole = ends * of.vocabulary * of.width
    size, shards = layout.replicas, layout.shard_over or layout.replicas
    if layout.experts == 1:
        return [HeldEntries((layers * of.layer_entries() + whole) / layout.tensor, size, layout.tensor, shards)]
    experts = of.expert_entries()
    rest = layers * (of.layer_entries() - experts) + whole
    return [
        HeldEntries(rest / layout.tensor, size, layout.tensor, shards),
        HeldEntries(layers * experts / layout.experts, layout.expert_replicas, layout.experts, layout.expert_replicas),
    ]


def _bytes_of(dtype: str) -> int:
    return 4 if dtype in ("float32", "tf32") else 2
