"""Self-centered clipping, ClippedGossip (He, Karimireddy and Jaggi 2022, "Byzantine-Robust Decentralized Learning via
Self-Centered Clipping", arXiv 2202.01545, section 4): each worker i joins its own weights and its neighbours',

    w_i <- sum_j a_ij (w_i + CLIP(w_j - w_i, tau_i)),          CLIP(z, tau) = z min(1, tau / ||z||)

so that a neighbour pulls by a_ij tau_i at most, wherever it is. The radius follows the neighbours' spread:

    tau_i = sqrt(1 / delta_i sum_{j in S} a_ij ||w_j - w_i||^2)

with delta_i the weight a_ij of f neighbours, and S the neighbours but for the f that are furthest. With f = 0, or a
radius that nobody is further than, it is plain gossip.

Deviation: all a_ij of a worker are alike here (exchange/topology.py), so that tau_i^2 is the sum of the nearer
distances' squares over f.

Cost: every row must be there; a few passes over all of them.

Use it under gossip, where no worker sees more than its neighbours, and a few liars may cut the graph in two.
"""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from .base import Named, Robust


class SelfCenteredClipping(Robust):
    traits = replace(Robust.traits, local=True)

    def __init__(
        self,
        f: int | None = None,
        before: Named = "none",
        bucket: int | None = None,
        tau: Annotated[float, Gt(0)] | None = None,
        seed: int = 0,
    ) -> None:
        """`tau`: the furthest that a neighbour counts; None for the paper's, by the spread. Raises `ConfigError`."""
        super().__init__(f, before, bucket, seed)
        self.tau = tau

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        own = rows[0]
        apart = rows - own
        lengths = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64)
        tau = self._radius(lengths[1:], f)
        factors = torch.where(lengths > tau, tau / lengths, torch.ones_like(lengths)).to(rows.dtype)
        return own + factors @ apart / len(rows)

    def _radius(self, lengths: Tensor, f: int) -> float:
        """tau_i, of the neighbours' distances."""
        if self.tau is not None:
            return self.tau
        if f == 0:
            return torch.inf
        nearer = lengths.sort().values[: max(len(lengths) - f, 0)]
        return float((nearer.square().sum() / f).sqrt())
