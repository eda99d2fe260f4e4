"""Adaptive robust clipping, ARC (Allouah et al. 2025, "Adaptive Gradient Clipping for Robust Federated Learning", ICLR,
Algorithm 2; arXiv 2405.14432).

    k = floor(2 f / n (n - f))
    the k rows of the largest norms are scaled down to the norm that comes next

A liar gains nothing by length; with f = 0 nothing is clipped.

Use it with a rule that lengths can mislead, such as `krum` or `geometric_median`.
"""

import torch
from torch import Generator, Tensor

from .base import Before


class ARC(Before):
    def mix(self, rows: Tensor, f: int, draws: Generator) -> Tensor:
        n = len(rows)
        k = 2 * f * (n - f) // n
        if k == 0:
            return rows
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        longest = lengths.sort(descending=True).values[k]
        factors = torch.where(lengths > longest, longest / lengths, torch.ones_like(lengths))
        return rows * factors.to(rows.dtype)[:, None]

    def most(self, rows: int) -> int:
        return (rows - 1) // 2
