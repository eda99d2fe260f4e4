"""Messages of scales and small codes: scales first, then the codes, of 1, 2, 4 or 8 bits each.

The codes of a vector are cut into as many runs as go into a byte; byte i has the i-th code of each run, the first run's
in its lowest bits. So packing works on whole runs at once. What the last run lacks is filled with zeros.
"""

import torch
from torch import Tensor

from .base import UnreadableError, Vector, check_length


def packed_bytes(n: int, bits: int) -> int:
    return -(-n * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """[n] of uint8, below 2^bits -> [packed_bytes(n, bits)]"""
    if bits == 8:
        return codes
    runs, n = 8 // bits, len(codes)
    if n % runs:
        codes = torch.cat([codes, codes.new_zeros(-n % runs)])
    of = codes.view(runs, -1)
    packed = of[0].clone()
    for i in range(1, runs):
        packed |= of[i] << (i * bits)
    return packed


def unpack(packed: Tensor, n: int, bits: int) -> Tensor:
    """-> [n] of uint8. Raises `UnreadableError`."""
    if bits == 8:
        return packed
    runs = 8 // bits
    codes = packed.new_empty(runs, len(packed))
    for i in range(runs):
        torch.bitwise_and(packed >> (i * bits), 2**bits - 1, out=codes[i])
    codes = codes.view(-1)
    if bool(codes[n:].any()):
        raise UnreadableError("what fills up its last byte is not 0")
    return codes[:n]


def scale_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which scales of vectors of this dtype travel: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def joined(scales: Tensor, codes: Tensor, bits: int) -> Tensor:
    """[k] and [n] of uint8 -> the message"""
    return torch.cat([scales.contiguous().view(torch.uint8), pack(codes, bits)])


def joined_bytes(scales: int, vector: Vector, bits: int) -> int:
    return scales * scale_type(vector.dtype).itemsize + packed_bytes(vector.n, bits)


def parted(message: Tensor, scales: int, vector: Vector, bits: int) -> tuple[Tensor, Tensor]:
    """The message -> [scales], finite and not negative, and [n] of uint8. Raises `UnreadableError`."""
    check_length(message, joined_bytes(scales, vector, bits))
    dtype = scale_type(vector.dtype)
    head = scales * dtype.itemsize
    sizes = message[:head].clone().view(dtype)  # a message may begin anywhere in memory; its numbers may not
    if not bool(((sizes >= 0) & sizes.isfinite()).all()):
        raise UnreadableError("one of its scales is NaN, infinite or negative")
    return sizes, unpack(message[head:], vector.n, bits)
