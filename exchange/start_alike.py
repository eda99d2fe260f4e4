"""Replicas begin with the same weights."""

import torch
from torch import nn

from ..comm import Comm


def start_alike(parameters: dict[str, nn.Parameter], comm: Comm) -> None:
    """Replica 0 broadcasts its parameters."""
    with torch.no_grad():
        for parameter in parameters.values():
            comm.broadcast(parameter.detach(), src=0).wait()
