"""Keeps the backward pass of stages that recompute in one piece, where a schedule splits it into I and W.

With two pieces, the activations recomputed for the gradient of the input (I) would be recomputed once more for the
gradients of the weights (W), and so would the gradients that go from layer to layer: a micro-batch would take
3 F + 2 I + W instead of 2 F + I + W. Besides, torch.utils.checkpoint recomputes for each backward call, and keeps the
activations that the call did not ask for until the graph is freed. W is one call for each weight (split_backward.py).
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...compat import checkpointing
from .actions import Action
from .chunks import Chunks


def joined(row: Sequence[Action], stages: Collection[int]) -> list[Action]:
    """Returns the actions with B in place of I, and without W, for these stages."""
    kept = (action for action in row if action.kind != "W" or action.stage not in stages)
    return [action._replace(kind="B") if action.kind == "I" and action.stage in stages else action for action in kept]


def recomputes(part: Chunks, chunk: int, entered: Tensor) -> bool:
    """Says whether layers of a chunk recompute, by a pass on the meta device, where `entered` is, too."""
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),  # it is on nobody's account
        checkpointing.met() as frames,
    ):
        part(entered, chunk)
    return bool(frames)
