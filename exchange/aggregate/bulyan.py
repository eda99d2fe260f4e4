"""Bulyan over Krum (El Mhamdi, Guerraoui and Rouault 2018, "The Hidden Vulnerability of Distributed Learning in
Byzantium", ICML, section 4; arXiv 1802.07927).

    1. theta = n - 2 f times: the row of the smallest Krum score among those that are left is selected and taken out
    2. of each column the beta = theta - 2 f selected entries that are nearest to their median; the mean of these

A row that Krum lets pass because it hides in one column is cut there. n >= 4 f + 3.

Deviation: where fewer than f + 3 rows are left in step 1, a score still counts one neighbour.

Cost: every row must be there; distances of all pairs once, then each entry of n - 2 f rows in order.

Use it where there are many workers and few liars, who may hide in single entries.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .base import Robust
from .distances import squared
from .krum import ranking
from .ranked import ranked


def selected(distances: Tensor, f: int, theta: int) -> Tensor:
    """[n, n] squared -> [theta], which rows Krum selects one after another, in their order."""
    left = list(range(len(distances)))
    taken: list[int] = []
    while len(taken) < theta:
        taken.append(left.pop(ranking(distances[left][:, left], f)[0]))
    return torch.tensor(sorted(taken), device=distances.device)


class Bulyan(Robust):
    traits = replace(Robust.traits, bound="n >= 4 f + 3")

    def most(self, rows: int) -> int:
        return (rows - 3) // 4

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        theta = len(rows) - 2 * f
        chosen = rows[selected(squared(rows), f, theta)]
        beta = theta - 2 * f
        order = ranked(chosen, 0, theta)
        middle = (order[(theta - 1) // 2] + order[theta // 2]) / 2
        # those nearest to the median follow one another in a sorted column: the first beta of it, moved on while the
        # entry that comes in is nearer than the one that goes out
        closer = [order[i + beta] - middle < middle - order[i] for i in range(2 * f)]
        sums = torch.stack([order[i : i + beta].sum(0) for i in range(2 * f + 1)])
        begin = torch.stack(closer).sum(0) if closer else torch.zeros_like(middle, dtype=torch.int64)
        return sums.gather(0, begin[None])[0] / beta
