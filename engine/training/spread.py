"""Measures how far replicas are from each other."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ...comm import Comm, PeerLostError
from ..fabrics.layout import RunLayout

_AT_ONCE = 2**20  # entries of all replicas that their distance is computed from at once


def consensus_distance(
    parameters: Sequence[Tensor], replica: int, others: Sequence[int], layout: RunLayout, comm: Comm
) -> float | None:
    """Returns how far replicas are from their mean: sqrt(mean_i |w_i - mean|^2), on replica 0; None elsewhere.

    `others`: on replica 0 the replicas whose weights are taken beside its own.

    The workers of the part with the loss call this. `comm`: of all workers, where no sync mode's messages are under
    way. Weights go to the chief by messages, so that a worker that died leaves only a gap. They go in pieces of a few
    MiB over all replicas, so that the measurement does not show in the peak of memory: the sum over pieces, in the
    order of parameters, of the mean over replicas.
    """
    total = 0.0
    for mine in pieces(parameters, max(_AT_ONCE // layout.replicas, 4096)):
        if replica != 0:
            with suppress(PeerLostError):
                comm.send(mine, layout.chief)
            continue
        rows = [mine]
        for other in others:
            theirs = torch.empty_like(mine)
            with suppress(PeerLostError):
                comm.recv(theirs, other * layout.parts + layout.loss_part)
                rows.append(theirs)
        stacked = torch.stack(rows)
        total += float(stacked.sub_(stacked.mean(0)).square_().sum(1).mean())  # in place: of many replicas it is large
    return total**0.5 if replica == 0 else None


def pieces(tensors: Sequence[Tensor], entries: int) -> Iterator[Tensor]:
    """[n], float64 on the CPU: the tensors' entries one after the other, n = `entries` but for the last piece."""
    room, filled = torch.empty(entries, dtype=torch.float64), 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        while len(flat):
            taken = min(len(flat), entries - filled)
            room[filled : filled + taken] = flat[:taken]
            flat, filled = flat[taken:], filled + taken
            if filled == entries:
                yield room.clone()
                filled = 0
    if filled:
        yield room[:filled].clone()
