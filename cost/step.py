"""The time of a training step of a transformer that is laid out by data, tensor and pipeline parallelism.

    step = micro-batches x (layers of a stage + head) + bubble + gradients' sum + optimizer + what the host adds

A layer's forward pass takes max(its kernels + its all-reduces, what the host takes to launch them): small layers are
bound by the host. Backward is twice forward, plus a forward pass where layers are recomputed. The bubble of 1F1B and of
GPipe is (p-1) passes of a stage, divided by v where each device has v chunks (Narayanan et al. 2021, section 2.2).

ZeRO 3 and FSDP gather each layer's weights in forward and in backward and scatter its gradient's sum, while the layer
before computes: a layer takes the longer of both, or their sum without overlap (Rajbhandari et al. 2020, "ZeRO",
section 7.2: 3 times the parameters travel, where an all-reduce moves 2). Where some replicas share the shards and
others hold the same, they sum their shards of the gradient by an all-reduce (Zhao et al. 2023, "PyTorch FSDP",
arXiv 2304.11277, section 3.2.2).

Libraries may cut the sums of tensor parallelism into pieces that travel while the next piece of a product computes
(Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models").

Where n devices share a layer's experts (Lepikhin et al. 2020, "GShard", arXiv 2006.16668), each sends the k h numbers
of each of its tokens to the k experts that compute it, and gets as many back: two all-to-alls forward, two backward,
and two where the layer is recomputed, which nothing hides. Each moves (n-1)/n of S = tokens k h numbers from a device:

    alpha + (n-1)/n S beta           on one host
    alpha + the longer of what stays on the host over its links, and of the rest of all its devices over its card

Where c devices share a sample's tokens, each computes its queries with the keys and values of all. These go round a
ring (Liu et al. 2023, "Ring Attention", arXiv 2310.01889): c - 1 times a device sends what it got, while it computes
with it, and waits for what the message takes longer. Backward the gradients of keys and values go round with them.
What each turn computes is added to a sum. Or keys and values are gathered first, and their gradients scattered, which
nothing hides (Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2). With a causal
mask the device of the last tokens has 2 - 1/c times the mean of the scores, unless each device has one part from the
start and one from the end, as both of these have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil

from .device import Device, Efficiency, product, streamed
from .layout import HeldEntries, ParallelLayout, shards_of
from .links import Links
from .memory import kept_input
from .transformer import Transformer, products, score_entries, streamed_entries

FORWARD_KERNELS, BACKWARD_KERNELS = 22, 40  # of a layer without a compiler: counted in Megatron-LM's of 2021
FUSED_KERNELS = 6  # that attention in one kernel saves, forward; twice of it backward
FACTOR_KERNELS = 4  # of a matrix with factors beside it, forward: two products, scale and sum; as many backward
FUSED_BACKWARD = (
    2.5  # times the forward's flops: the scores once more, and four products (Dao et al. 2022, algorithm 4)
)
CAST_BYTES = 12  # of an entry and micro-batch under autocast: read and rounded forward, its gradient widened backward
ADAM_BYTES = 32  # that mixed-precision Adam reads and writes for an entry: gradient twice, weight, master, both moments
# Bytes of an entry and turn of a ring: a result is read, and its sum in float32 read and written; backward a gradient
SUMMED_BYTES, SUMMED_BACKWARD_BYTES = 10, 6
RING_KERNELS, RING_BACKWARD_KERNELS = 3, 4  # of a turn: attention, and its sums
NEVER_HIDDEN = 0.05  # of the gradients' sum: its last bucket


@dataclass(frozen=True)
class Cluster:
    device: Device
    links: Links
    host_link: float = 1.2e10  # bytes a second of each device, to its host: PCIe 3.0 x16, pinned
    host_bandwidth: float = 1.0e11  # bytes a second of a host's memory


@dataclass(frozen=True)
class StepTime:
    """Seconds, by what they go to. Only what is exposed counts, so that they add up to the step."""

    compute: float
    tensor: float  # all-reduces within layers
    context: float  # waiting for other devices' keys and values
    experts: float  # all-to-alls of tokens
    bubble: float
    shards: float  # waiting for ZeRO's weights
    data: float  # the sum of gradients
    optimizer: float
    offload: float  # over the host link, and on the host's CPU
    host: float  # launches that the device waits for, and what a step takes beside

    @property
    def total(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True)
class PassBreakdown:
    """The time of a layer or of the head for one micro-batch. Seconds: of kernels, of all-reduces, of waiting for
    launches, of all-to-alls, of waiting for keys and values.
    """

    compute: float
    tensor: float = 0.0
    waiting: float = 0.0
    experts: float = 0.0
    context: float = 0.0

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.waiting + self.experts + self.context

    def __add__(self, other: "PassBreakdown") -> "PassBreakdown":
        return PassBreakdown(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: float) -> "PassBreakdown":
        return PassBreakdown(*(times * getattr(self, each.name) for each in fields(self)))


def step_time(of: Transformer, layout: ParallelLayout, cluster: Cluster, fits: Efficiency) -> StepTime:
    layer = layer_passes(of, layout, cluster, fits)
    stage = layer * ceil(of.layers / layout.stages)
    each = stage + head_passes(of, layout, cluster, fits)
    held = shards_of(of, layout, of.layers / layout.stages, 1)
    entries = sum(each.entries for each in held)
    handed_on = _handed_on(of, layout, cluster, fits)
    factors = of.factor_entries() / layout.stages / layout.tensor
    trained = held if of.factors is None else [held[0]._replace(entries=factors)]
    micro_batches = layout.micro_batches
    casts = streamed(cluster.device, fits, _cast_bytes(of, layout, entries, sum(each.entries for each in trained)))
    return StepTime(
        compute=micro_batches * (each.compute + casts),
        tensor=micro_batches * each.tensor,
        context=micro_batches * each.context,
        experts=micro_batches * each.experts,
        bubble=(layout.stages - 1) / layout.chunks * (stage.total + handed_on)
        + micro_batches * handed_on * layout.chunks,
        shards=_waiting_for_shards(of, layout, cluster, fits, layer, held),
        data=_sum_of_gradients(of, layout, cluster, fits, trained, each.total * 2 / 3),
        optimizer=0.0
        if layout.offload != "none"
        else streamed(cluster.device, fits, ADAM_BYTES * _own(layout, trained)),
        offload=_offload(layout, cluster, held) + _inputs_to_host(of, layout, cluster),
        host=micro_batches * each.waiting + fits.step,
    )


def _cast_bytes(of: Transformer, layout: ParallelLayout, entries: float, trained: float) -> float:
    """Returns the bytes that a micro-batch moves to round weights. Frozen ones have no gradient to widen."""
    if not layout.casts:
        return 0.0
    frozen = 0.0 if of.factors is None or of.factors.narrow else CAST_BYTES / 2 * entries
    return CAST_BYTES * trained + frozen


def layer_passes(of: Transformer, layout: ParallelLayout, cluster: Cluster, fits: Efficiency) -> PassBreakdown:
    """Forward, backward, and forward again where it is recomputed: of the mean layer."""
    device = cluster.device
    linear, scores, thin, matrices = 0.0, 0.0, 0.0, 0
    for each in products(of, layout.samples, layout.tensor, layout.fused, layout.experts):
        if each.of_scores and layout.fused:
            scores += fits.level * each.flops / (fits.attention * attention_peak(device, layout.dtype))
        elif each.of_scores:
            scores += product(device, fits, attention_dtype(device, layout.dtype), each.m, each.n, each.k, each.count)
        else:
            linear += product(device, fits, layout.dtype, each.m, each.n, each.k, each.count)
            if of.factors is not None and not (of.factors.only_queries and matrices):
                matrices, rank = matrices + 1, of.factors.rank
                thin += product(device, fits, layout.dtype, each.m, rank, each.k, each.count)
                thin += product(device, fits, layout.dtype, each.m, each.n, rank, each.count)
    if of.causal and layout.fused and not layout.balanced:
        scores *= 2 - 1 / layout.context
    back = FUSED_BACKWARD * scores * fits.attention / fits.attention_back if layout.fused else 2 * scores
    entries = streamed_entries(
        of, layout.samples, layout.tensor, layout.experts, fits.norm, fits.residual, fits.activation
    )
    moved = streamed(device, fits, layout.entry * entries)
    scored = 0.0 if layout.fused else score_entries(of, layout.samples, layout.tensor, fits.scores)
    softmax = streamed(device, fits, layout.entry * scored)
    summed = 2 * cluster.links.all_reduce(layout.entry * layout.samples * of.context * of.width, layout.tensor, 1)
    dispatched = layout.entry * layout.samples * of.context * of.active * of.width / layout.tensor
    exchanged = 2 * cluster.links.all_to_all(dispatched, layout.experts)
    launched, launched_back = FORWARD_KERNELS, BACKWARD_KERNELS
    if layout.fused:
        launched, launched_back = launched - FUSED_KERNELS, launched_back - 2 * FUSED_KERNELS
    launched, launched_back = launched + FACTOR_KERNELS * matrices, launched_back + FACTOR_KERNELS * matrices
    if not layout.grouped:
        kernels_of_experts = _kernels_of_experts(of, layout)
        launched, launched_back = launched + kernels_of_experts, launched_back + 2 * kernels_of_experts
    collectives = 2 * fits.collective * ((layout.tensor > 1) + (layout.experts > 1))
    turns = layout.context if layout.context > 1 and not layout.gathers_keys else 0
    launched, launched_back = launched + RING_KERNELS * turns, launched_back + RING_BACKWARD_KERNELS * turns
    joined, joined_back = (streamed(device, fits, turns * nbytes) for nbytes in _summed_bytes(of, layout))
    waited, waited_back = _waiting_for_keys(of, layout, cluster, fits, scores, back)
    kernels = linear + thin + scores + moved + softmax + joined
    by_weights = linear if of.factors is None else 0.0  # frozen ones need no gradient
    summed, summed_back = (_exposed(summed, layout, fits, products) for products in (linear, linear + by_weights))
    forward = _passes(kernels, summed, exchanged, launched * fits.launch + collectives, waited)
    again = linear + by_weights + 2 * (thin + moved + softmax) + back + joined_back
    backward = _passes(again, summed_back, exchanged, launched_back * fits.launch + collectives, waited_back)
    match layout.recompute:
        case "full":
            once_more = forward
        case "selective" if not layout.fused:  # scores, softmax, and their product with the values
            once_more = PassBreakdown(scores + softmax)
        case "others":
            once_more = _passes(scores + moved + softmax, 0.0, 0.0, launched * fits.launch)
        case "operators":
            once_more = _passes((linear + thin) / 2 + moved, 0.0, 0.0, launched * fits.launch)
        case _:
            return forward + backward
    return forward + backward + once_more * layout.recomputed


def _exposed(summed: float, layout: ParallelLayout, fits: Efficiency, products: float) -> float:
    """Returns the seconds of sums within a layer that its products do not hide.

    A sum is a scatter of a product's result and a gather of the next one's input. Both go piece by piece, as many as
    devices; the last piece of a scatter has nothing beside it.
    """
    if not layout.hides_sums:
        return summed
    alone = summed / 2 / layout.tensor
    return alone + beside(summed - alone, products, fits) - products


def _kernels_of_experts(of: Transformer, layout: ParallelLayout) -> float:
    """Returns the kernels of a forward pass: two products of each expert of a device, and in less than 16 bits one more
    before each, which rounds its input (GroupedLinear of Transformer Engine, which calls a product for each).
    """
    each = 4 if layout.dtype in ("float8", "float4") else 2
    return each * of.experts / layout.experts


def _summed_bytes(of: Transformer, layout: ParallelLayout) -> tuple[float, float]:
    """Returns the bytes that one turn of a ring moves to add up its results, and backward the gradients of queries,
    keys and values.
    """
    entries = layout.samples * of.context / layout.tensor
    return (
        SUMMED_BYTES * entries * of.query_width,
        SUMMED_BACKWARD_BYTES * entries * (of.query_width + 2 * of.kv_width),
    )


def _waiting_for_keys(
    of: Transformer, layout: ParallelLayout, cluster: Cluster, fits: Efficiency, scores: float, back: float
) -> tuple[float, float]:
    """Returns the seconds of a layer, forward and backward, that attention waits for other devices' keys and values."""
    size, stride = layout.context, layout.tensor
    if size == 1:
        return 0.0, 0.0
    own = layout.entry * layout.samples * of.context * 2 * of.kv_width / layout.tensor
    if layout.gathers_keys:
        gathered = cluster.links.all_gather(size * own, size, stride)
        return gathered, 2 * gathered
    link = cluster.links.slowest(size, stride)

    def waited(nbytes: float, computed: float) -> float:
        turn = link.latency + nbytes / link.bandwidth
        return (size - 1) * (beside(turn, computed / size, fits) - computed / size)

    return waited(own, scores), waited(2 * own, back)


def _passes(compute: float, summed: float, exchanged: float, host: float, waited: float = 0.0) -> PassBreakdown:
    waiting = max(0.0, host - compute - summed - exchanged - waited)
    return PassBreakdown(compute, summed, waiting, exchanged, waited)


def attention_dtype(device: Device, dtype: str) -> str:
    """Scores are computed in half precision where the layers' products are in less."""
    return "float16" if dtype in ("float8", "float4") and "float16" in device.peak else dtype


def attention_peak(device: Device, dtype: str) -> float:
    return device.peak[attention_dtype(device, dtype)]


def head_passes(of: Transformer, layout: ParallelLayout, cluster: Cluster, fits: Efficiency) -> PassBreakdown:
    """The logits and their loss, forward and backward: never recomputed; the loss is in float32."""
    tokens, mine = layout.samples * of.context, of.vocabulary / layout.tensor
    dtype = attention_dtype(cluster.device, layout.dtype)
    logits = product(cluster.device, fits, dtype, tokens, mine, of.width)
    moved = 3 * streamed(cluster.device, fits, (8 + 2 * layout.entry) * tokens * mine)
    return PassBreakdown((3 if of.factors is None else 2) * logits + moved)


def _handed_on(of: Transformer, layout: ParallelLayout, cluster: Cluster, fits: Efficiency) -> float:
    """Seconds for a micro-batch from stage to stage, forward and backward."""
    if layout.stages == 1:
        return 0.0
    nbytes = layout.entry * layout.samples * of.context * of.width / (layout.tensor if layout.sequence else 1)
    return 2 * (fits.send + cluster.links.send(nbytes, layout.tensor * layout.replicas))


def _waiting_for_shards(
    of: Transformer,
    layout: ParallelLayout,
    cluster: Cluster,
    fits: Efficiency,
    layer: PassBreakdown,
    held: Sequence[HeldEntries],
) -> float:
    """Returns the seconds of a step by which gathering weights and scattering gradients takes longer than the layers.

    What is gathered first and scattered last has no layer beside it: the embedding with the head, and one layer. In
    stages 1 and 2 weights are gathered once, after the optimizer's step, and nothing hides it.
    """
    links = cluster.links
    if layout.zero < 3:
        return sum(_gathered(layout, links, each) for each in held) if layout.zero else 0.0
    one = shards_of(of, layout, 1, 0)
    moved = sum(2 * _gathered(layout, links, each) + _scattered(layout, links, each) for each in one)
    longer = beside(moved, layer.total, fits) - layer.total if layout.overlap else moved
    ends = shards_of(of, layout, 0, 1 if of.tied or layout.stages > 1 else 2)
    alone = [*ends, *(one if layout.overlap else [])]
    exposed = sum(_gathered(layout, links, each) + _scattered(layout, links, each) for each in alone)
    return layout.micro_batches * (ceil(of.layers / layout.stages) * longer + exposed)


def _gathered(layout: ParallelLayout, links: Links, held: HeldEntries) -> float:
    return links.all_gather(layout.held * held.entries, held.shards, held.stride)


def _scattered(layout: ParallelLayout, links: Links, held: HeldEntries) -> float:
    """Returns the seconds after which each device has the sum of all gradients of its shard."""
    shard = layout.held * held.entries / held.shards
    return _gathered(layout, links, held) + links.all_reduce(shard, held.size // held.shards, held.stride * held.shards)


def beside(moved: float, computed: float, fits: Efficiency) -> float:
    """Seconds of a collective and of computation at the same time: each slows the other down."""
    return max(moved, computed + fits.contended * min(moved, computed))


def _sum_of_gradients(
    of: Transformer,
    layout: ParallelLayout,
    cluster: Cluster,
    fits: Efficiency,
    held: Sequence[HeldEntries],
    backward: float,
) -> float:
    """Exposed: all of it, or what the last micro-batch's backward pass, of `backward` seconds, does not hide.

    ZeRO 1 and 2 scatter the sum, which takes half of an all-reduce where all replicas share the shards.
    """
    links = cluster.links
    ends = 0.0
    if layout.stages > 1 and of.tied:  # the embedding's gradient, of the first and of the last stage
        ends = links.all_reduce(
            layout.held * of.vocabulary * of.width / layout.tensor, 2, layout.tensor * layout.replicas
        )
    if layout.zero >= 3:
        return ends
    summed = sum(
        _scattered(layout, links, each)
        if layout.zero
        else links.all_reduce(layout.summed * each.entries, each.size, each.stride)
        for each in held
    )
    if layout.overlap:
        return ends + max(beside(summed, backward, fits) - backward, NEVER_HIDDEN * summed)
    return ends + summed


def _own(layout: ParallelLayout, held: Sequence[HeldEntries]) -> float:
    return sum(each.entries / (each.shards if layout.zero >= 1 else 1) for each in held)


def _offload(layout: ParallelLayout, cluster: Cluster, held: Sequence[HeldEntries]) -> float:
    """Gradients to the host and weights back; Adam in the host's memory, which its devices share."""
    if layout.offload == "none":
        return 0.0
    passes = 2 * layout.micro_batches if layout.offload == "all" else 0  # weights, for forward and backward
    moved = layout.held * (2 + passes) * _own(layout, held) / cluster.host_link
    return moved + ADAM_BYTES * _own(layout, held) * cluster.links.per_host / cluster.host_bandwidth


def _inputs_to_host(of: Transformer, layout: ParallelLayout, cluster: Cluster) -> float:
    """Returns the seconds to move the layers' inputs, which full recomputation keeps, to the host and back."""
    if not layout.inputs_on_host or layout.recompute != "full":
        return 0.0
    moved = 2 * layout.micro_batches * ceil(of.layers / layout.stages) * kept_input(of, layout)
    return moved / cluster.host_link
