"""The rows' entries in order, column by column: a sorting network (Batcher 1968, "Sorting networks and their
applications"; as merge exchange in Knuth, The Art of Computer Programming 3, Algorithm 5.2.2M).

A network compares the same pairs of rows whatever they hold, so that each comparison is one operation on whole rows:
for a few rows of many columns that is several times faster than to sort each column. Comparisons that no wanted
rank depends on are left out: a median needs fewer than a sort.
"""

from functools import cache

import torch
from torch import Tensor

COLUMNS = 2**14  # at once: rows of so many stay in cache


@cache
def comparisons(n: int, wanted: tuple[int, ...]) -> list[tuple[int, int, bool, bool]]:
    """(i, j, whether the smaller is needed, the larger): they leave the smaller in row i and the larger in row j."""
    pairs: list[tuple[int, int]] = []
    top = 1 << (n - 1).bit_length() - 1 if n > 1 else 0
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    needed, kept = set(wanted), list[tuple[int, int, bool, bool]]()
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            kept.append((i, j, i in needed, j in needed))
            needed |= {i, j}
    return kept[::-1]


def ranked(rows: Tensor, first: int, last: int) -> Tensor:
    """[n, d], no NaN -> [last - first, d]: of each column the entries of these ranks, from the smallest, 0, on."""
    n = len(rows)
    steps = comparisons(n, tuple(range(first, last)))
    out = torch.empty(last - first, rows.shape[1], dtype=rows.dtype, device=rows.device)
    for to, block in zip(out.split(COLUMNS, dim=1), rows.split(COLUMNS, dim=1), strict=True):
        lanes = list(block)
        for i, j, smaller, larger in steps:
            a, b = lanes[i], lanes[j]
            if smaller:
                lanes[i] = torch.minimum(a, b)
            if larger:
                lanes[j] = torch.maximum(a, b)
        to.copy_(torch.stack(lanes[first:last]))
    return out
