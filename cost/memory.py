"""The memory of a device that trains a transformer, in bytes by kind.

Model states: 2 bytes an entry for the weight, 2 or 4 for its gradient, 12 for Adam's master copy and two moments; ZeRO
stage 1 shards the last over the replicas, stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al. 2020,
"ZeRO", section 5). What keeps gradients in half precision and steps in float32 copies them for the step: 4 more,
sharded as the optimizer's state is (Smith et al. 2022, "Using DeepSpeed and Megatron to Train Megatron-Turing NLG
530B", section 2.1: 20 bytes a parameter). The copy counts beside the activations, as an allocator does not join the
blocks that these leave behind.

Activations of one layer and micro-batch, in half precision, without recomputation (Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", equations 1, 2, 4, 5 and 6):

    s b h (10 + 24/t + 5 a s / (h t))      tensor parallel; (34 + 5 a s / h) / t with sequence parallelism
    without the term in a: selective recomputation, or attention in one kernel;  2 s b h: full recomputation
    with experts, k of which compute a token: the feed-forward layer's part k times, and 4 s b k h / t more

Stage i of p holds those of min(p - i, m) micro-batches (1F1B); the first stage's most, times 1 + (p-1)/(p v) where
interleaved, over all of its layers. With them go 2 s b h of each for the stage's own result, unless it is freed once it
is sent (the same, appendix B).

Gated layers with RMSNorm whose kernels are not fused keep more: of each norm a float32 copy of its input and its
result before the weights (4 + 2 in place of 2), and the activation function's result (2). Grouped keys and values may
be copied for each head. Recomputation of operators keeps attention's result, and of a layer's products (queries, keys,
values, result, gate, up, down) the first, the third and the fifth.

A loss that is computed step by step holds 14 bytes a logit: in half precision (2), in float32, less the largest, and
exponentials (4 each). In one kernel, logits and their gradient in half precision: 4. With full recomputation the loss
has given its memory back before a layer is computed again: the larger of both counts.

DistributedDataParallel's buckets are a copy of all gradients (torch's documentation of `gradient_as_bucket_view`). FSDP
keeps the head gathered from forward to backward, beside two layers (torch's documentation of `fully_shard`: the root is
not resharded after forward). If gradients are freed after a step and a step has one micro-batch, they take the place
that activations leave.

What tools state differs: `allocated` is torch.cuda.max_memory_allocated, `reserved` has what the allocator loses too,
and `total`, as nvidia-smi prints it, has the CUDA context and NCCL's buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil

from .layout import HeldEntries, ParallelLayout, shards_of
from .transformer import Transformer

# CUDA loads kernels as they are needed since version 11.7: its context takes 0.3 to 0.5 GB, and took 1 GB with all of
# them (PyTorch's issue 107667). NCCL's buffers take 0.55 to 0.7 GB (NCCL's issue 964).
CONTEXT, WHOLE_CONTEXT = 1.0e9, 1.6e9
SHARE = 0.05  # of all, which an allocator loses


@dataclass(frozen=True)
class Software:
    """The buffers that a trainer's code holds. Bytes of each entry, but `loss`: bytes of each logit."""

    gradient: int = 2
    gradient_copy: int = 0  # in float32, for the optimizer's step
    states: int = 12  # of the optimizer, with its master copy
    loss: int = 14
    keeps_results: bool = True  # of a stage, until its backward pass
    fused: bool = True  # norms and activation functions, in a kernel each
    repeats_keys: bool = False  # of grouped queries, for each head
    buckets: bool = False  # DistributedDataParallel's
    frees_gradients: bool = False  # after each step
    gathers_head: bool = False  # under ZeRO 3
    context: float = CONTEXT


# Megatron-LM's and DeepSpeed's optimizers in float16, of 2020 and 2021
HALF_GRADIENTS = Software(gradient_copy=4, context=WHOLE_CONTEXT)


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the device that holds most."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    lost: float  # by the allocator
    context: float  # CUDA's, with NCCL's buffers

    @property
    def total(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def reserved(self) -> float:
        return self.total - self.context

    @property
    def allocated(self) -> float:
        return self.reserved - self.lost


def held(of: Transformer, layout: ParallelLayout, software: Software = Software()) -> DeviceMemory:
    """Returns the memory of the first or the last stage, whichever holds more."""
    ends = [_of_stage(of, layout, software, first) for first in (True, False)]
    return max(ends, key=lambda each: each.total)


def _of_stage(of: Transformer, layout: ParallelLayout, software: Software, first: bool) -> DeviceMemory:
    here = ceil(of.layers / layout.stages)
    held = shards_of(of, layout, here, 2 if layout.stages == 1 and not of.tied else 1)
    factors = of.factor_entries() * here / of.layers / layout.tensor
    trained = held if of.factors is None else [held[0]._replace(entries=factors)]
    on_host = layout.offload != "none"

    def sharded(of_these: Sequence[HeldEntries], stage: int) -> float:
        return sum(each.entries / (each.shards if layout.zero >= stage else 1) for each in of_these)

    weights = 0.0 if layout.offload == "all" else 2 * (sharded(held, 3) + factors)
    gradients = software.gradient * sharded(trained, 2)
    if software.buckets and layout.data > 1 and layout.zero == 0:
        gradients *= 2
    states = 0.0 if on_host else (software.states + software.gradient_copy) * sharded(trained, 1)
    one = sum(each.entries for each in shards_of(of, layout, 1, 0))
    head = of.vocabulary * of.width / layout.tensor if software.gathers_head else 0.0
    gathered = 2 * (2 * one + head) if layout.zero >= 3 else 0.0  # two layers at a time
    in_flight = min(layout.stages if first else 1, layout.micro_batches)
    activations = here * layer_activations(of, layout, software) * in_flight
    if layout.chunks > 1 and first:
        activations *= 1 + (layout.stages - 1) / (layout.stages * layout.chunks)
    if layout.stages > 1 and first and software.keeps_results:
        activations += in_flight * layout.chunks * layer_input(of, layout)
    logits = 0.0
    if not first or layout.stages == 1:
        logits = software.loss * layout.samples * of.context * of.vocabulary / layout.tensor
    if layout.recompute in ("full", "operators"):  # and the rest of a layer once more, where the loss was before
        again = layer_activations(of, replace(layout, recompute="none"), software)
        if layout.recompute == "operators":
            again -= _kept_products(of, layout)
        activations += again
        logits = max(0.0, logits - again)
    if software.frees_gradients and layout.micro_batches == 1:
        gradients = max(0.0, gradients - activations - logits)
    total = weights + gathered + gradients + states + activations + logits
    return DeviceMemory(weights + gathered, gradients, states, activations, logits, SHARE * total, software.context)


def layer_activations(of: Transformer, layout: ParallelLayout, software: Software = Software()) -> float:
    """Bytes that one layer, the mean one, keeps of one micro-batch for its backward pass."""
    tokens, t = layout.samples * of.context, layout.tensor
    if layout.recompute in ("full", "operators"):
        kept = 0.0 if layout.inputs_on_host else kept_input(of, layout)
        if layout.recompute == "operators":
            kept += _kept_products(of, layout)
        if layout.recomputed == 1:
            return kept
        rest = layer_activations(of, replace(layout, recompute="none", recomputed=1.0), software)
        return layout.recomputed * kept + (1 - layout.recomputed) * rest
    product_input = 1 if layout.dtype in ("float8", "float4") else 2
    whole = (
        (4 + 2 * product_input + (2 if of.dropout else 0)) * tokens * of.width
    )  # inputs of norms, of products; masks
    gates = 4 if of.gated else 2
    if of.gated and not software.fused:
        whole, gates = whole + 8 * tokens * of.width, gates + 2
    if layout.sequence:
        whole /= t
    keys = of.query_width if software.repeats_keys else of.kv_width
    attention = 4 * tokens * (of.query_width + keys)  # queries and the result; keys and values
    feed_forward = (gates + product_input) * tokens * of.computing * of.feed_forward
    if of.experts:  # what experts are given, and what they answer, for the gradient of its weight in the sum
        feed_forward += (product_input + 2) * tokens * of.active * of.width
    scores = (5 if of.dropout else 2) * layout.samples * of.heads * of.context * of.scored
    if layout.fused or layout.recompute in ("selective", "others"):
        scores = 0.0
    return whole + (attention + feed_forward + scores) / t


def _kept_products(of: Transformer, layout: ParallelLayout) -> float:
    """Bytes of attention's result and of every second product's: queries, values and gate."""
    widths = 2 * of.query_width + of.kv_width + of.feed_forward
    return 2 * layout.samples * of.context * widths / layout.tensor


def layer_input(of: Transformer, layout: ParallelLayout) -> float:
    """Bytes of what goes into a layer, in half precision: of one micro-batch, on one device."""
    return 2 * layout.samples * of.context * of.width / (layout.tensor if layout.sequence else 1)


def kept_input(of: Transformer, layout: ParallelLayout) -> float:
    """Bytes of what full recomputation keeps of a layer, wherever it is kept: of one micro-batch and device."""
    return layer_input(of, layout) / (layout.tensor if layout.split_inputs else 1)
