"""Replicas begin with the same weights."""

import torch
from torch import nn

from ..comm import Comm
from ..comm.process import ProcessComm


def start_alike(parameters: dict[str, nn.Parameter], comm: Comm) -> None:
    """Replica 0 broadcasts its parameters."""
    with torch.no_grad():
        for parameter in parameters.values():
            comm.broadcast(parameter.detach(), src=0).wait()


def start_alike_on_host(parameters: dict[str, nn.Parameter], comm: ProcessComm) -> None:
    """Does the same for parameters that are on the host, one after the other by way of the device.

    Writes only to those that differ: the processes of a host may share the memory of the others until then.
    """
    with torch.no_grad():
        for parameter in parameters.values():
            sent = parameter.detach().to(comm.device, copy=True)
            comm.broadcast(sent, src=0).wait()
            if not torch.equal(sent := sent.cpu(), parameter):
                parameter.copy_(sent)
