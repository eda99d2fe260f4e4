"""Stochastic rounding to whole numbers: up with the probability of what is above the number below, so that the
expectation of what comes out is what went in,

    floor(r + u) = floor(r) + floor(f + u),      f = r - floor(r),      u uniform in [0, 1).

u is a multiple of 2^-23: sixteen bits are drawn for each entry, which is what takes time, and seven for a whole row. As
each u is uniform by itself, expectations and variances are as if all were independent. The expectation is off by 2^-23
at most, whatever r is, and a whole number stays as it is: f + u is added up, since r + u may be rounded up to the next.

With a C compiler, rows of float32 on a CPU are rounded in one pass (comm/native/rounding.c), to the same bits.
"""

import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ...comm import native

BLOCK = 2**16  # entries that are worked on at once: they stay in the cache
LEAST = 2.0**-110  # a scale: what is divided by it is far below float32's largest number


def generator(drawn: torch.Generator) -> np.random.Generator:
    """Ten times faster than torch's own on the CPU, with its seed."""
    return np.random.Generator(np.random.SFC64(drawn.initial_seed()))


def uniform(rows: int, width: int, draws: np.random.Generator) -> tuple[Tensor, Tensor]:
    """k, [rows, width] of int16, and h, [rows, 1]: u is k 2^-16 + h."""
    drawn = draws.integers(0, 2**64, -(-rows * width // 4), dtype=np.uint64)
    k = torch.from_numpy(drawn.view(np.int16)[: rows * width]).view(rows, width)
    j = torch.from_numpy(draws.integers(0, 2**7, (rows, 1)))
    return k, 0.5 + j.to(torch.float32) * 2**-23


def floor_of_sum(r: Tensor, k: Tensor, h: Tensor, room: Tensor) -> Tensor:
    """floor(r + u), in place. `room`: as large as r."""
    whole = torch.floor(r, out=room)
    return r.sub_(whole).add_(k, alpha=2**-16).add_(h).floor_().add_(whole)


def levels(x: Tensor, scales: Tensor, s: int, draws: np.random.Generator, out: Tensor) -> None:
    """[rows, width] and their scales [rows], > 0 and none below the row's magnitudes -> `out`, [rows width] of uint8.

    Each is s + the s x / scale that was rounded to a whole number, from 0 to 2 s.
    """
    rows, width = x.shape
    x, codes = x.contiguous(), out.view(rows, width)
    factors, room, more = (s / scales)[:, None], x.new_empty(BLOCK), x.new_empty(BLOCK)
    is_single = x.device.type == "cpu" and x.dtype == torch.float32
    library = native_rounding() if is_single else None
    height, length = max(1, BLOCK // max(1, width)), min(max(1, width), BLOCK)
    for top in range(0, rows, height):
        for left in range(0, width, length):
            block, factor = x[top : top + height, left : left + length], factors[top : top + height]
            code = codes[top : top + height, left : left + length]
            k, h = (drawn.to(x.device) for drawn in uniform(block.shape[0], block.shape[1], draws))
            if library is not None:
                places = (each.data_ptr() for each in (block, k, factor, h))
                library.round_to_levels(*places, *block.shape, width, s, code.data_ptr())
                continue
            r, whole = (free[: block.numel()].view(block.shape) for free in (room, more))
            torch.mul(block, factor, out=r)
            rounded = floor_of_sum(r, k, h, whole).clamp_(-s, s)  # s x / scale may have been rounded up
            code.copy_(rounded.add_(s))


@cache
def native_rounding() -> ctypes.CDLL | None:
    """Returns comm/native/rounding.c; None, and says so, if it cannot be compiled."""
    if (library := native.load_or_say("rounding", "torch computes stochastic rounding")) is None:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.round_to_levels.argtypes = [*(pointer,) * 4, size, size, size, ctypes.c_int, pointer]
    library.round_to_levels.restype = None
    return library


def norms_of(rows: Tensor) -> Tensor:
    """[rows, width] -> [rows], from `LEAST` to the largest number; not finite where a row is not.

    Those that float32's squares may be too small or too large for are made in float64.
    """
    norms = torch.linalg.vector_norm(rows, dim=1)
    odd = ~((norms > 2.0**-40) & (norms < 2.0**60))
    if bool(odd.any()):
        exact = torch.linalg.vector_norm(rows[odd], dim=1, dtype=torch.float64)
        most = torch.finfo(rows.dtype).max
        norms[odd] = torch.where(exact.isfinite(), exact.clamp(LEAST, most), exact).to(rows.dtype)
    return norms
