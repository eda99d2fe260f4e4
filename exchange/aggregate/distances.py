"""Squared distances of all pairs of rows.

With a C compiler, distances of rows on a CPU are sums of squared differences (comm/native/distances.c). A difference of
float32 entries is exact in float64 unless one is 2^29 times the other. So each distance has a relative error below
1e-11 up to 10^9 columns, wherever the rows lie.

Without one, and on other devices, torch makes them by one product of matrices, about three times slower:

    ||x_i - x_j||^2 = <y_i, y_i> + <y_j, y_j> - 2 <y_i, y_j>        y_i = x_i - o

On rows that lie close together and far from o, this loses all digits: in float32, and with o = 0, it gave 1,792 for
1,905 in a public library. So it is made in float64, some columns at a time, with o the mean of rows. Where a lie is so
long that the mean lies far from most rows, o is one of these. Distances between most rows lose at most six of sixteen
digits, and agree with native ones to 1e-9. The last bits differ: replicas with and without a compiler may choose
different rows where scores lie closer than that.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from ...comm import native

COLUMNS = 2**14  # at once in torch: they stay in cache
SHARE = 2**17  # columns that a thread compares at once
FAR = 1e6  # times the squared distance between most rows: six of sixteen digits are lost


def squared(rows: Tensor) -> Tensor:
    """[n, d], finite -> [n, n] in float64, at least 0; infinite where it overflows."""
    if rows.device.type == "cpu" and (library := native_distances()) is not None:
        return _differences(library, rows)
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
    return found.nan_to_num_(nan=torch.inf, posinf=torch.inf).clamp_(min=0.0).fill_diagonal_(0.0)


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


@cache
def native_distances() -> ctypes.CDLL | None:
    """Returns comm/native/distances.c; None, and says so, if it cannot be compiled."""
    if (library := native.load_or_say("distances", "torch computes distances between updates")) is None:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.squared_distances.argtypes = [pointer, ctypes.c_int, size, size, size, size, pointer]
    return library


def _differences(library: ctypes.CDLL, rows: Tensor) -> Tensor:
    """Returns `squared(rows)`, with the same bits for any number of threads."""
    x = (rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).contiguous()
    n, d = x.shape
    starts = range(0, d, SHARE)
    parts = torch.zeros(max(len(starts), 1), n, n, dtype=torch.float64)

    def compare(start: int, part: Tensor) -> None:
        is_double, end = x.dtype == torch.float64, min(start + SHARE, d)
        if not library.squared_distances(x.data_ptr(), is_double, n, d, start, end, part.data_ptr()):
            raise MemoryError(f"no memory for the distances of {n:,} rows")

    threads = min(torch.get_num_threads(), len(starts))
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compare, starts, parts))
    else:
        list(map(compare, starts, parts))
    for part in parts[1:]:
        parts[0] += part
    return parts[0]
