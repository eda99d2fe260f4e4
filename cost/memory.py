"""What a device holds while it trains a transformer, in bytes by kind.

Model states: 2 bytes an entry for the weight, 2 or 4 for its gradient, 12 for Adam's master copy and two moments; ZeRO
stage 1 shards the last over the replicas, stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al. 2020,
"ZeRO", section 5).

Activations of one layer and micro-batch, in half precision, without recomputation (Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", equations 1, 2, 4, 5 and 6):

    s b h (10 + 24/t + 5 a s / (h t))      tensor parallel; (34 + 5 a s / h) / t with sequence parallelism
    without the term in a: selective recomputation, or attention in one kernel;  2 s b h: full recomputation

Stage i of p holds those of min(p - i, m) micro-batches (1F1B); the first stage's most, times 1 + (p-1)/(p v) where
interleaved, over all of its layers.
"""

from dataclasses import dataclass, fields
from math import ceil

from .layout import Layout
from .transformer import Transformer

CONTEXT, SHARE = 1.0e9, 0.05  # of the runtime and its libraries, and what an allocator loses of all


@dataclass(frozen=True)
class Held:
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


def held(of: Transformer, layout: Layout, gradient_bytes: int = 2) -> Held:
    """Of the first or the last stage, whichever holds more."""
    ends = [_of_stage(of, layout, gradient_bytes, first) for first in (True, False)]
    return max(ends, key=lambda each: each.total)


def _of_stage(of: Transformer, layout: Layout, gradient_bytes: int, first: bool) -> Held:
    here = ceil(of.layers / layout.stages)
    entries = (here * of.layer_entries() + of.vocabulary * of.width) / layout.tensor
    if layout.stages == 1 and not of.tied:
        entries += of.vocabulary * of.width / layout.tensor
    replicas = layout.replicas
    on_host = layout.offload != "none"
    weights = 0.0 if layout.offload == "all" else 2 * entries / (replicas if layout.zero >= 3 else 1)
    gradients = gradient_bytes * entries / (replicas if layout.zero >= 2 else 1)
    states = 0.0 if on_host else 12 * entries / (replicas if layout.zero >= 1 else 1)
    gathered = 2 * 2 * of.layer_entries() / layout.tensor if layout.zero >= 3 else 0.0  # two layers at a time
    in_flight = min(layout.stages if first else 1, layout.micro_batches)
    activations = here * layer_activations(of, layout) * in_flight
    if layout.chunks > 1 and first:
        activations *= 1 + (layout.stages - 1) / (layout.stages * layout.chunks)
    if layout.recompute == "full":  # and those of the layer that is computed again
        activations += layer_activations(of, layout, "none")
    logits = 0.0
    if not first or layout.stages == 1:  # in half precision, in float32 for the loss, and their gradient
        logits = 8 * layout.samples * of.context * of.vocabulary / layout.tensor
    total = weights + gathered + gradients + states + activations + logits
    return Held(weights + gathered, gradients, states, activations, logits, CONTEXT + SHARE * total)


def layer_activations(of: Transformer, layout: Layout, recompute: str | None = None) -> float:
    """Bytes that one layer keeps of one micro-batch for its backward pass."""
    recompute = recompute or layout.recompute
    tokens, t = layout.samples * of.context, layout.tensor
    if recompute == "full":
        return 2 * tokens * of.width / (t if layout.sequence else 1)
    product_input = 1 if layout.dtype in ("float8", "float4") else 2
    whole = (
        (4 + 2 * product_input + (2 if of.dropout else 0)) * tokens * of.width
    )  # inputs of norms, of products; masks
    if layout.sequence:
        whole /= t
    attention = 4 * tokens * (of.width + of.kv_width)  # queries and the result; keys and values
    feed_forward = ((4 if of.gated else 2) + product_input) * tokens * of.feed_forward
    scores = (5 if of.dropout else 2) * layout.samples * of.heads * of.context**2
    if layout.fused or recompute == "selective":
        scores = 0.0
    return whole + (attention + feed_forward + scores) / t
