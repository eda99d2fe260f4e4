"""Majority vote of signs (Bernstein et al. 2019, "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant", ICLR, Algorithm 1; arXiv 1810.05291).

    sign(sum_i sign(x_i))

Each entry is -1, 0 or 1, whatever the lengths of the rows: the optimizer's rate says how far a step goes, and has to be
a good deal smaller than with other rules. Rows travel whole here; `compress=signsgd` votes on one bit an entry.

Cost: every row must be there; one pass over all of them.

Use it where lengths of gradients cannot be trusted at all.
"""

from dataclasses import replace

from torch import Tensor

from .base import Robust


class MajorityVote(Robust):
    traits = replace(Robust.traits, coordinatewise=True, of_points=False, resizes="makes signs of gradients")

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows.sign().sum(0).sign()
