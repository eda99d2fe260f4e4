"""Of stages that compute something again for backward, the backward pass stays in one piece where a schedule has two.

If there were two, what is computed again for the gradient of the input (I) would be computed once more for those of the
weights (W), and so would the gradients that go from layer to layer: a micro-batch would take 3 F + 2 I + W in place of
2 F + I + W. And torch.utils.checkpoint computes again for each backward call that asks for something, and keeps what
that call did not ask for until the graph is let go of; W is one call for each weight (split_backward.py).
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...compat import checkpointing
from .actions import Action
from .chunks import Chunks


def joined(row: Sequence[Action], stages: Collection[int]) -> list[Action]:
    """With B in the place of I, and without W, of these stages."""
    kept = (action for action in row if action.kind != "W" or action.stage not in stages)
    return [action._replace(kind="B") if action.kind == "I" and action.stage in stages else action for action in kept]


def recomputes(part: Chunks, chunk: int, entered: Tensor) -> bool:
    """Whether layers of a chunk compute something again, by a pass on the meta device, where `entered` is, too."""
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),  # it is on nobody's account
        checkpointing.met() as frames,
    ):
        part(entered, chunk)
    return bool(frames)
