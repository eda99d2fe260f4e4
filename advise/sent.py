"""Bytes that a worker sends in a step, by closed forms; what is shown has the plan's own figure."""

from .candidate import Candidate
from .memory import Shape


def sent(of: Shape, candidate: Candidate) -> float:
    """Sums over n replicas send 2 (n-1)/n of what is summed (Patarasuk and Yuan 2009); ZeRO 3 gathers weights twice and
    scatters gradients (Rajbhandari et al. 2020, section 7); a block has 4 sums of activations among tensor workers
    (Shoeybi et al. 2019), 6 where it is recomputed; stages hand on activations and their gradients. Where passes cast
    float32 weights, sums among tensor workers are narrow, and all else is float32.
    """
    layout = candidate.layout
    assert layout is not None
    n, t, p = layout.replicas, layout.tensor, layout.stages
    own = of.entries / (t * p)
    sums = 3 if layout.zero >= 3 else 2
    passes = layout.micro_batches if candidate.family == "zero" and layout.zero >= 2 else 1
    across = sums * passes * (n - 1) / n * layout.held * own
    tokens = layout.micro_batch * layout.micro_batches * of.context
    activations = tokens * of.width
    rounds = 6 if layout.recompute == "full" else 4
    within = rounds * of.layers / p * (t - 1) / t * 2 * layout.entry * activations
    crossed = activations / (t if layout.sequence else 1)
    handed = 2 * (p - 1) / p * layout.chunks * layout.held * crossed
    return across + within + handed
