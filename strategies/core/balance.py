"""A row cut into parts of which the heaviest is light: layers into stages, parameters into servers' shards."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf

Weight = Callable[[int, int, int], float]  # (part, begin, end) -> what it weighs; infinity where it may not be


def lightest(n: int, parts: int, weight: Weight, price: Callable[[int], float] | None = None) -> list[int]:
    """Cut points of the contiguous partition of n things whose heaviest part is lightest.

    Of several, that whose cut points cost the least together, by `price`; without prices, ties cut early.
    """
    cuts = _best(n, parts, lambda before, part, i, j: max(before, weight(part, i, j)))
    if price is None:
        return cuts
    heaviest = max(weight(part, i, j) for part, (i, j) in enumerate(pairwise([0, *cuts, n])))

    def paid(before: float, part: int, i: int, j: int) -> float:
        return before + price(i) if weight(part, i, j) <= heaviest else inf

    return _best(n, parts, paid)


def _best(n: int, parts: int, total: Callable[[float, int, int, int], float]) -> list[int]:
    """A dynamic programme: best[k][j] is the least total of k parts over the first j things, and where the last of them
    begins. `total`: from that of the parts before, the number of the last part, and its two ends."""
    best = [[(inf, 0)] * (n + 1) for _ in range(parts + 1)]
    best[0][0] = (0.0, 0)
    for k in range(1, parts + 1):
        for j in range(k, n + 1):
            best[k][j] = min((total(best[k - 1][i][0], k - 1, i, j), i) for i in range(k - 1, j))
    cuts, j = [], n
    for k in range(parts, 1, -1):
        j = best[k][j][1]
        cuts.append(j)
    return cuts[::-1]


def balanced(weights: Sequence[float], parts: int) -> list[int]:
    """Returns cut points, as `lightest` does, where a part's weight is the sum of its weights. If enough weights are
    not 0, each part has one of them.
    """
    prefix = [0.0, *accumulate(weights)]
    return lightest(len(weights), parts, lambda _, i, j: prefix[j] - prefix[i] or inf)
