"""Distances of all pairs of rows, by one product of matrices.

    ||x_i - x_j||^2 = <y_i, y_i> + <y_j, y_j> - 2 <y_i, y_j>        y_i = x_i - o

On rows that lie close together and far from o, this loses all digits: in float32, and with o = 0, it gave 1,792 for
1,905 in a public library. So it is made in float64, some columns at a time, with o the mean of rows. Where a lie is so
long that the mean lies far from most rows, o is one of these.
"""

import torch
from torch import Tensor

COLUMNS = 2**14  # at once: they stay in cache
FAR = 1e6  # times the squared distance between most rows: six of sixteen digits are lost


def squared(rows: Tensor) -> Tensor:
    """[n, d], finite -> [n, n] in float64, at least 0; infinite where it overflows."""
    return apart(gram(rows))


def gram(rows: Tensor) -> Tensor:
    """[n, d], finite -> [n, n] in float64: <y_i, y_j>, measured from among most of the rows."""
    found = _about(rows, None)
    middle = middles(apart(found))
    among = int(middle.argmin())
    if float(found[among, among]) > FAR * float(middle[among]):
        return _about(rows, among)
    return found


def apart(gram: Tensor) -> Tensor:
    """[n, n], <y_i, y_j> -> [n, n], ||x_i - x_j||^2"""
    lengths = gram.diagonal()
    found = lengths[:, None] + lengths[None, :] - (gram + gram.T)  # alike both ways, to the bit
    return found.nan_to_num_(nan=torch.inf).clamp_(min=0.0).fill_diagonal_(0.0)


def middles(distances: Tensor) -> Tensor:
    """[n, n] squared -> [n]: how far each row is from those around it, as long as fewer than half lie."""
    return distances.sort(dim=1).values[:, len(distances) // 2]


def to_combination(gram: Tensor, shares: Tensor) -> Tensor:
    """[n, n], <y_i, y_j>, and [n], of sum 1 -> [n]: the squared distance of each row to sum_j shares_j x_j."""
    # of inner products and not of distances: a row that is very far and counts very little must not take away digits
    near = gram @ shares
    return (gram.diagonal() - 2 * near + shares @ near).clamp(min=0.0)


def _about(rows: Tensor, origin: int | None) -> Tensor:
    """[n, n], <x_i - o, x_j - o>. `origin`: the row that is o; None for the mean of all."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in rows.split(COLUMNS, dim=1):
        x = block.double()
        y = x - (x.mean(0) if origin is None else x[origin])
        found.addmm_(y, y.T)
    return found
