"""A row of weights cut into parts of about the same weight: layers into stages, parameters into servers' shards."""

from collections.abc import Sequence


def balanced(weights: Sequence[int], parts: int) -> list[int]:
    """Cut points of the contiguous partition of `weights` whose heaviest part is lightest; ties cut early.

    Where there are enough weights other than 0, no part is left without one.
    """
    n = len(weights)
    prefix = [0]
    for weight in weights:
        prefix.append(prefix[-1] + weight)
    # best[k][j]: the heaviest of k parts over the first j weights, and where the last of them begins
    best = [[(float("inf"), 0)] * (n + 1) for _ in range(parts + 1)]
    best[0][0] = (0.0, 0)
    for k in range(1, parts + 1):
        for j in range(k, n + 1):
            heaviest = [max(best[k - 1][i][0], prefix[j] - prefix[i] or float("inf")) for i in range(k - 1, j)]
            best[k][j] = min((heavy, i) for i, heavy in enumerate(heaviest, start=k - 1))
    cuts, j = [], n
    for k in range(parts, 1, -1):
        j = best[k][j][1]
        cuts.append(j)
    return cuts[::-1]
