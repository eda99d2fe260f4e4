"""What a pass sends, counted in a rehearsal."""

import copy

import torch
from torch import Tensor, nn

from .group import Group, Sent
from .vocabulary import cross_entropy, head_of


def sent_in_a_pass(part: nn.Module, inputs: Tensor) -> list[Sent]:
    """What a worker of the group sends in a forward and a backward pass of `part`, all on the meta device.

    `Group.traffic` says how many bytes that are. A part whose head is cut is followed by its loss.
    """
    alone = copy.deepcopy(part)
    group = group_of(alone)
    group.join(alone, None)
    outputs = alone(inputs)
    if (head := head_of(alone)) is not None:
        targets = torch.empty(outputs.shape[:-1].numel(), dtype=torch.int64, device=outputs.device)
        outputs = cross_entropy(outputs.flatten(0, -2), targets, head.first, head.group)
    outputs.sum().backward()
    return group.sent


def group_of(part: nn.Module) -> Group:
    """Of the layers that are cut, of which there is one at least."""
    found = (getattr(layer, "group", None) for layer in part.modules())
    return next(each for each in found if isinstance(each, Group))
