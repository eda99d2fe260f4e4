"""Messages of a pass, counted in a dry run: all is on the meta device, and a group has no communicator.

`TensorGroup.traffic` returns their bytes. If the head is partitioned, its loss is part of the pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...batches import Samples, call
from ..core.copies import copied
from ..pipelining.chunks import Chunks, weights_of
from ..pipelining.execute import forward
from ..pipelining.split_backward import backward_to_input
from .group import Sent, TensorGroup
from .vocabulary import cross_entropy, head_of


def sent_in_a_pass(part: nn.Module, inputs: Samples) -> list[Sent]:
    """Returns the tensors that a worker of the group sends in a forward and a backward pass of `part`."""
    alone = copied(part)
    group = group_of(alone)
    assert group is not None, "no layer is cut"
    group.join(alone, None)
    _ended(alone, call(alone, inputs)).sum().backward()
    return group.sent


class SentBy(NamedTuple):
    """The tensors that each pass of a micro-batch through a chunk sends."""

    forward: list[Sent]
    backward: list[Sent]  # of a backward pass in two: the first one, to the input
    weights: list[Sent]  # of a backward pass in two: the second one

    @property
    def all(self) -> list[Sent]:
        return [*self.forward, *self.backward, *self.weights]


def sent_by_passes(
    part: Chunks, chunk: int, entered: Tensor, ends: bool, recompute: bool = False, apart: bool = False
) -> SentBy:
    """Returns the tensors that a worker of a pipeline's stage sends in each pass.

    `ends`: the chunk is the model's last one, and the loss follows. `apart`: backward is in two, as split_backward.py
    has it.
    """
    alone = copied(part)
    group = group_of(alone)
    if group is None:
        return SentBy([], [], [])
    group.join(alone, None)
    output = forward(alone, chunk, entered, recompute)
    output = _ended(alone, output) if ends else output
    forth, ones = len(group.sent), torch.ones_like(output)
    later = None
    if not apart:
        output.backward(ones)
    elif entered.requires_grad:
        later = backward_to_input(output, ones, entered, weights_of(alone, chunk))
    back = len(group.sent)
    if apart:
        later() if later is not None else output.backward(ones)
    return SentBy(group.sent[:forth], group.sent[forth:back], group.sent[back:])


def _ended(part: nn.Module, outputs: Tensor) -> Tensor:
    """The loss, where it is that of pieces of the outputs."""
    if (head := head_of(part)) is None:
        return outputs
    targets = torch.empty(outputs.shape[:-1].numel(), dtype=torch.int64, device=outputs.device)
    return cross_entropy(outputs.flatten(0, -2), targets, head.first, head.group)


def group_of(part: nn.Module) -> TensorGroup | None:
    """Returns the group of the partitioned layers; None if there are none."""
    found = (getattr(layer, "group", None) for layer in part.modules())
    return next((each for each in found if isinstance(each, TensorGroup)), None)
