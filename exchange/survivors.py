"""Messages among workers of which some may die: what is sent to the dead goes nowhere, and they say nothing.

Tensors are the CPU's: from accelerators, two workers cannot send to each other before they receive.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..comm import Comm, PeerLostError, Work
from .topology import Neighbours


def isend_to(tensor: Tensor, workers: Iterable[int], comm: Comm) -> list[Work]:
    """Begin to send `tensor` to each of `workers`; it must not change until `wait_for`."""
    works: list[Work] = []
    for worker in workers:
        try:
            works.append(comm.isend(tensor, worker))
        except PeerLostError:
            pass
    return works


def wait_for(works: Iterable[Work]) -> None:
    """Wait for what `isend_to` began."""
    for work in works:
        try:
            work.wait()
        except PeerLostError:
            pass


def recv_from(tensor: Tensor, worker: int, comm: Comm) -> bool:
    """Fill `tensor` with the next message from `worker`; False, and `tensor` is worth nothing, if it is dead."""
    try:
        comm.recv(tensor, worker)
    except PeerLostError:
        return False
    return True


def mix(own: Tensor, sent: Tensor, near: Neighbours, comm: Comm, received: Tensor, out: Tensor, purpose: str) -> Tensor:
    """out <- sum_j a_ij x_j over the worker's neighbours and itself, with a_ij = 1 / (1 + |of|). Returns it.

    A dead neighbour is replaced by the worker itself.

    Args:
        own: [n], x_i.
        sent: [n], the message to neighbours: x_i, if the worker is honest. It is left as it is.
        near: the neighbours.
        comm: the workers.
        received: [n] on the CPU, written over.
        out: [n].
        purpose: Names the messages in a trace.
    """
    a = 1 / (1 + len(near.of))
    with comm.timeline.named(purpose):
        sending = isend_to(sent.cpu(), near.to, comm)
    torch.mul(own, a, out=out)
    for j in near.of:
        heard = recv_from(received, j, comm)
        out.add_(received.to(out.device) if heard else own, alpha=a)
    wait_for(sending)
    return out


def mean_of_living(x: Tensor, weight: float, comm: Comm) -> Tensor:
    """sum_i x_i / sum_i weight_i over the workers i that live, the same bits on all of them.

    Every living worker must call it. Worker 0 must live: it gathers and answers, as a collective could not do without
    the dead, and as no two workers need to agree on who they are. It receives and sends n - 1 times `x`.
    """
    total, weights = x.to("cpu", copy=True), torch.tensor([weight], dtype=torch.float64)
    if comm.rank != 0:
        wait_for(isend_to(weights, [0], comm) + isend_to(total, [0], comm))
        comm.recv(total, 0)
        return total.to(x.device)
    received, its_weight = torch.empty_like(total), torch.empty_like(weights)
    others = range(1, comm.size)
    for worker in others:
        if recv_from(its_weight, worker, comm) and recv_from(received, worker, comm):
            total += received
            weights += its_weight
    total /= float(weights)
    wait_for(isend_to(total, others, comm))
    return total.to(x.device)
