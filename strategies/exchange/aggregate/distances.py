"""Distances of all pairs of rows, by one product of matrices.

    ||x_i - x_j||^2 = <y_i, y_i> + <y_j, y_j> - 2 <y_i, y_j>        y_i = x_i - the mean of rows

On rows that lie close together and far from zero, in float32 and without the mean taken off, this loses all digits: it
gave 1,792 for 1,905 in a public library. So it is made of centred rows in float64, some columns at a time.
"""

import torch
from torch import Tensor

COLUMNS = 2**14  # at once: they stay in cache


def squared(rows: Tensor) -> Tensor:
    """[n, d], finite -> [n, n] in float64, at least 0; infinite where it overflows."""
    n = len(rows)
    gram = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    for block in rows.split(COLUMNS, dim=1):
        centred = block.double()
        centred = centred - centred.mean(0)
        gram.addmm_(centred, centred.T)
    lengths = gram.diagonal()
    found = lengths[:, None] + lengths[None, :] - (gram + gram.T)  # alike both ways, to the bit
    return found.nan_to_num_(nan=torch.inf).clamp_(min=0.0).fill_diagonal_(0.0)


def to_combination(distances: Tensor, shares: Tensor) -> Tensor:
    """[n, n] squared and [n], of sum 1 -> [n]: the squared distance of each row to sum_j shares_j x_j."""
    near = distances @ shares
    return (near - shares @ near / 2).clamp(min=0.0)
