"""The k smallest of the entries of several tensors, which may be on several workers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
Sum = Callable[[Tensor], Tensor]


def alone(counts: Tensor) -> Tensor:
    """The sum over one worker."""
    return counts


def smallest(magnitudes: Sequence[Tensor], k: int, counted: Sequence[bool], total: Sum = alone) -> list[Tensor]:
    """Returns bools [n_i] for tensors [n_i] of one dtype, none negative: True for the k smallest entries of all.

    Of equal entries those of the first tensors are taken, and in a tensor the first. On several workers all call, with
    the same tensors in the same order: a tensor is empty on a worker that has none of it, and if several have it, one
    counts it. `total`: [m] of float64 -> its sum over the workers.

    No entry travels: the k-th smallest is found by bisection of its bits, from how many entries are at most so large.
    """
    device = next((each.device for each in magnitudes), torch.device("cpu"))
    keys = [_keys(each) for each in magnitudes]  # in the same order as what they are of
    own = [each for each, counts in zip(keys, counted, strict=True) if counts and len(each)]
    ordered = torch.cat(own).sort().values if own else torch.empty(0, dtype=torch.int64, device=device)
    bits = 8 * max((each.element_size() for each in keys), default=8) - 1  # without the sign

    def at_most(key: int) -> float:
        found = torch.searchsorted(ordered, torch.tensor([key], dtype=ordered.dtype, device=device), right=True)
        return total(found.double()).item()

    if k <= 0:
        return [torch.zeros(len(each), dtype=torch.bool, device=device) for each in keys]
    # the least key t of which at least k are at most t
    low, high = 0, 2**bits - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(middle) >= k else (middle + 1, high)
    # all below t, and of those that are t as many as there is room for
    room = k - (at_most(low - 1) if low else 0.0)
    level = [each == low for each in keys]
    ties = [float(each.sum()) if counts else 0.0 for each, counts in zip(level, counted, strict=True)]
    found: list[Tensor] = []
    for key, tied, count in zip(
        keys, level, total(torch.tensor(ties, dtype=torch.float64, device=device)), strict=True
    ):
        taken = min(room, count.item())
        room -= taken
        found.append((key < low) | (tied & (tied.cumsum(0) <= taken)))
    return found


def _keys(magnitudes: Tensor) -> Tensor:
    """Returns integers, [n], in the order of the floats: nonnegative floats have the order of their bits."""
    return magnitudes.contiguous().view(_INTEGERS[magnitudes.element_size()])
