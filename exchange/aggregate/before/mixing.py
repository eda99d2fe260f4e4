"""Nearest-neighbour mixing, NNM (Allouah et al. 2023, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under
Heterogeneity", AISTATS, Algorithm 2; arXiv 2302.01772).

    y_i = the mean of the n - f rows that are nearest to x_i, x_i itself among them

Honest workers whose data differ have rows that lie far apart, which a rule mistakes for lies; mixed, they lie nearer.

Cost: distances of all pairs, and one product [n, n] by [n, d].

Use it where data differ by worker.
"""

import torch
from torch import Generator, Tensor

from ..distances import squared
from .base import Before


class Mixing(Before):
    def mix(self, rows: Tensor, f: int, draws: Generator) -> Tensor:
        n = len(rows)
        distances = squared(rows)
        distances.fill_diagonal_(-1.0)  # itself first, also beside equal rows
        nearest = distances.sort(dim=1, stable=True).indices[:, : n - f]
        chosen = torch.zeros(n, n, dtype=rows.dtype, device=rows.device).scatter_(1, nearest, 1.0 / (n - f))
        return chosen @ rows

    def most(self, rows: int) -> int:
        return (rows - 1) // 2
