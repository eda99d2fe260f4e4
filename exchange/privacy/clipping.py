"""Factors that scale each of several vectors to a norm of at most C, by one norm for all its pieces."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...strategies.core.errors import NotFiniteError

ROUNDING = 1e-6  # more than rounding to float32 makes of a clipped vector's norm


def factors(pieces: Sequence[Tensor], clip: float, whose: str) -> Tensor:
    """[n, ...] of each parameter, C -> [n] float64, min(1, C / ||g_i||). Raises `NotFiniteError`."""
    norms = torch.stack([_norms(piece).square() for piece in pieces]).sum(0).sqrt()
    if not bool(norms.isfinite().all()):
        raise NotFiniteError(f"{whose} is not finite, and no weight was changed by it; a smaller optimizer.lr may help")
    # norms of 0 are inf here, and 1 after the clamp
    return (clip / (1 + ROUNDING) / norms).clamp(max=1)


def _norms(piece: Tensor) -> Tensor:
    """[n, ...] -> [n] float64"""
    dims = tuple(range(1, piece.dim()))
    return torch.linalg.vector_norm(piece, dim=dims, dtype=torch.float64) if dims else piece.double().abs()
