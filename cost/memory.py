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

A loss that is computed step by step holds 14 bytes a logit: in half precision (2), in float32, less the largest, and
exponentials (4 each). In one kernel, logits and their gradient in half precision: 4. With full recomputation the loss
has given its memory back before a layer is computed again: the larger of both counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil

from .layout import HeldEntries, ParallelLayout, shards_of
from .transformer import Transformer

CONTEXT, SHARE = 1.0e9, 0.05  # of the runtime and its libraries, and what an allocator loses of all


@dataclass(frozen=True)
class Software:
    """The buffers that a trainer's code holds. Bytes of each entry, but `loss`: bytes of each logit."""

    gradient: int = 2
    gradient_copy: int = 0  # in float32, for the optimizer's step
    loss: int = 14
    keeps_results: bool = True  # of a stage, until its backward pass


HALF_GRADIENTS = Software(gradient_copy=4)  # Megatron-LM's and DeepSpeed's optimizers in float16


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the device that holds most."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    runtime: float

    @property
    def total(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))


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
        return sum(each.entries / (each.size if layout.zero >= stage else 1) for each in of_these)

    weights = 0.0 if layout.offload == "all" else 2 * (sharded(held, 3) + factors)
    gradients = software.gradient * sharded(trained, 2)
    states = 0.0 if on_host else (12 + software.gradient_copy) * sharded(trained, 1)
    one = sum(each.entries for each in shards_of(of, layout, 1, 0))
    gathered = 2 * 2 * one if layout.zero >= 3 else 0.0  # two layers at a time
    in_flight = min(layout.stages if first else 1, layout.micro_batches)
    activations = here * layer_activations(of, layout) * in_flight
    if layout.chunks > 1 and first:
        activations *= 1 + (layout.stages - 1) / (layout.stages * layout.chunks)
    if layout.stages > 1 and first and software.keeps_results:
        activations += in_flight * layout.chunks * layer_input(of, layout)
    logits = 0.0
    if not first or layout.stages == 1:
        logits = software.loss * layout.samples * of.context * of.vocabulary / layout.tensor
    if layout.recompute == "full":  # and those of the layer that is computed again, where the loss was before
        again = layer_activations(of, layout, "none")
        activations += again
        logits = max(0.0, logits - again)
    total = weights + gathered + gradients + states + activations + logits
    return DeviceMemory(weights + gathered, gradients, states, activations, logits, CONTEXT + SHARE * total)


def layer_activations(of: Transformer, layout: ParallelLayout, recompute: str | None = None) -> float:
    """Bytes that one layer, the mean one, keeps of one micro-batch for its backward pass."""
    if recompute is None and layout.recomputed < 1:
        kept, all_of_it = (layer_activations(of, layout, which) for which in (layout.recompute, "none"))
        return layout.recomputed * kept + (1 - layout.recomputed) * all_of_it
    recompute = recompute or layout.recompute
    tokens, t = layout.samples * of.context, layout.tensor
    if recompute == "full":
        return 0.0 if layout.inputs_on_host else kept_input(of, layout)
    if recompute == "operators":  # the layer's input, attention's result, and every second product's
        up = of.feed_forward * (2 if of.gated else 1)
        results = of.query_width + 2 * of.kv_width + of.width + of.computing * (up + of.width)
        return layer_input(of, layout) + 2 * tokens * (of.query_width + results / 2) / t
    product_input = 1 if layout.dtype in ("float8", "float4") else 2
    whole = (
        (4 + 2 * product_input + (2 if of.dropout else 0)) * tokens * of.width
    )  # inputs of norms, of products; masks
    if layout.sequence:
        whole /= t
    attention = 4 * tokens * (of.query_width + of.kv_width)  # queries and the result; keys and values
    feed_forward = ((4 if of.gated else 2) + product_input) * tokens * of.computing * of.feed_forward
    if of.experts:  # what experts are given, and what they answer, for the gradient of its weight in the sum
        feed_forward += (product_input + 2) * tokens * of.active * of.width
    scores = (5 if of.dropout else 2) * layout.samples * of.heads * of.context**2
    if layout.fused or recompute == "selective":
        scores = 0.0
    return whole + (attention + feed_forward + scores) / t


def layer_input(of: Transformer, layout: ParallelLayout) -> float:
    """Bytes of what goes into a layer, in half precision: of one micro-batch, on one device."""
    return 2 * layout.samples * of.context * of.width / (layout.tensor if layout.sequence else 1)


def kept_input(of: Transformer, layout: ParallelLayout) -> float:
    """Bytes of what full recomputation keeps of a layer, wherever it is kept: of one micro-batch and device."""
    return layer_input(of, layout) / (layout.tensor if layout.split_inputs else 1)
