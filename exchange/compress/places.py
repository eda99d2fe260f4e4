"""Messages that say which entries they are of: places, rising, and values.

In a whole vector a place takes four bytes. In rows of fewer entries (chunks) it takes as many bits as a row needs.
"""

import numpy as np
import torch
from torch import Tensor

from .base import UnreadableError, Vector

PLACE = 4  # bytes: int32
COLUMN = 8  # entries that one maximum stands for


def note_on_ratio(ratio: float, n: int, what: str = "message") -> list[str]:
    """See `Compressor.notes`: ceil(ratio n) is never 0."""
    if ratio * n >= 1:
        return []
    return [f"compress.ratio={ratio:g}: less than one of the {n:,} entries of a {what}; one is sent all the same"]


# -- in a whole vector


def pairs(places: Tensor, x: Tensor) -> Tensor:
    """[k] of whole numbers, and the vector that they are places in -> the message"""
    return torch.cat([places.to(torch.int32).view(torch.uint8), x[places].view(torch.uint8)])


def pair_bytes(k: int, vector: Vector) -> int:
    return k * (PLACE + vector.dtype.itemsize)


def read_pairs(message: Tensor, vector: Vector) -> Tensor:
    """The message -> [n], 0 where it says nothing. Raises `UnreadableError`."""
    k, rest = divmod(message.nbytes, pair_bytes(1, vector))
    if rest:
        raise UnreadableError(f"{message.nbytes} bytes are no whole number of places and values")
    own = message.clone()  # a message may begin anywhere in memory; its numbers may not
    places, values = own[: PLACE * k].view(torch.int32).long(), own[PLACE * k :].clone().view(vector.dtype)
    check_rising(places[None], vector.n)
    return values.new_zeros(vector.n).scatter_(0, places, values)


def check_rising(places: Tensor, n: int) -> None:
    """[rows, k]: of each row rising, and below n. Raises `UnreadableError`."""
    falls = bool((places[:, 1:] <= places[:, :-1]).any())
    if falls or bool((places < 0).any()) or bool((places >= n).any()):
        raise UnreadableError(f"its places are not {places.shape[1]} rising numbers below {n}")


# -- in rows


def largest_of_rows(rows: Tensor, k: int) -> Tensor:
    """[rows, width] of finite numbers -> [rows, k], the places of the largest magnitudes; of equal ones, the first."""
    if k == rows.shape[1]:
        return torch.arange(k, device=rows.device).expand(len(rows), k)
    magnitudes = rows.abs()
    values, places = _largest(magnitudes, k + 1)
    chosen = places[:, :k].sort(dim=1).values
    ties = (values[:, k - 1] == values[:, k]).nonzero().flatten()
    if len(ties):  # of those at the least magnitude the first
        least, tied = values[ties, k - 1 : k], magnitudes[ties]
        above, level = tied > least, tied == least
        level &= level.cumsum(1) <= k - above.sum(1, keepdim=True)
        chosen[ties] = (above | level).nonzero()[:, 1].view(len(ties), k)
    return chosen


def _largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """[rows, width] -> the k largest, falling, and their places; of equal ones any.

    They lie in the k columns of the largest maxima, if a row is cut into COLUMN runs that stand below one another.
    """
    count, width = rows.shape
    if width % COLUMN or width // COLUMN <= k:
        values, places = rows.topk(k, dim=1)
        return values, places
    below = rows.view(count, COLUMN, width // COLUMN)
    columns = below.amax(1).topk(k, dim=1, sorted=False).indices
    values, at = below.gather(2, columns[:, None].expand(count, COLUMN, k)).flatten(1).topk(k, dim=1)
    return values, at // k * below.shape[2] + columns.gather(1, at % k)


def count_of_rows(chosen: Tensor) -> Tensor:
    """[rows, width] of bool -> [rows], how many there are."""
    return chosen.view(torch.uint8).sum(1, dtype=torch.int32)  # five times as fast as the sum of bool


def bits_of(width: int) -> int:
    """Returns the bits of a column index in a row of this width."""
    return max(1, (width - 1).bit_length())


def pack_places(places: Tensor, bits: int) -> Tensor:
    """[m], below 2^bits -> [ceil(m bits / 8)] of uint8"""
    octets = places.flatten().cpu().numpy().astype(">u4").view(np.uint8).reshape(-1, 4)
    return torch.from_numpy(np.packbits(np.unpackbits(octets, axis=1)[:, 32 - bits :])).to(places.device)


def unpack_places(packed: Tensor, m: int, bits: int) -> Tensor:
    """-> [m]. Raises `UnreadableError`."""
    found = np.unpackbits(packed.cpu().numpy())
    if found[m * bits :].any():
        raise UnreadableError("what fills up the last byte of its places is not 0")
    whole = np.zeros((m, 32), np.uint8)
    whole[:, 32 - bits :] = found[: m * bits].reshape(m, bits)
    places = np.packbits(whole, axis=1).view(">u4").reshape(-1).astype(np.int64)
    return torch.from_numpy(places).to(packed.device)
