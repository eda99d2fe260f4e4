"""Zeno++, for a server that applies each push as it comes (Xie, Koyejo and Gupta 2020, "Zeno++: Robust Fully
Asynchronous SGD", ICML, Algorithm 1; arXiv 1903.07020). v is the last gradient of one who is trusted. Of a push u

    g = u ||v|| / ||u||
    w <- step(w, g)   if  <v, g> - rho ||g||^2 >= -eps,      else u is left out

so that no push counts by its length, and none that points too far away from v counts at all: with eps = 0 the cosine of
u and v must be at least rho.

Deviations: the paper's server computes v itself, on a small clean data set, every few steps; here the pushes of one
replica, `trusted`, are v, and are applied as they are, as in `fltrust`. rho is the paper's over the learning rate,
and so is eps. What is pushed before v is there is left out.

Cost: the server keeps v; three passes over each push.

Use it with sync=asp, where no two gradients are ever there at once, and one worker is known to be honest.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...conf.errors import ConfigError
from ...strategies.core.state import State
from .base import Aggregator, AggregatorTraits


class ZenoPlusPlus(Aggregator):
    traits = AggregatorTraits(one_by_one=True, remembers=True, robust=True, of_points=False)

    def __init__(
        self,
        trusted: Annotated[int, Ge(0)] = 0,
        rho: Annotated[float, Ge(-1), Le(1)] = 0.0,
        eps: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        """`trusted`: a replica. `rho`: how far a push must point along v, a cosine: above 1 none would count, below -1
        all. `eps`: how much less will do, in squares of gradients' lengths.
        """
        self.trusted, self.rho, self.eps = trusted, rho, eps
        self._v: Tensor | None = None

    def most(self, rows: int) -> int:
        return rows - 1

    def check(self, rows: int) -> None:
        assert self.trusted is not None
        if rows < 2 or self.trusted >= rows:
            raise ConfigError(
                f"aggregate.trusted={self.trusted}: there are {rows} replicas, and it must be one of them, beside "
                "others. Choose another, or more hardware.workers."
            )

    def admitted(self, row: Tensor, replica: int) -> Tensor | None:
        """[d], pushed by this replica -> what is stepped with; None: nothing. `row` stays."""
        if replica == self.trusted:
            self._v = row.clone()
            return row
        if self._v is None:
            return None
        v, u = self._v.double(), row.double()
        length = torch.linalg.vector_norm(u)
        if not (bool(length.isfinite()) and length > 0):
            return None
        g = u * (torch.linalg.vector_norm(v) / length)
        score = float(v @ g - self.rho * (g @ g))
        return g.to(row.dtype) if score >= -self.eps else None

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        raise AssertionError("it is asked about one row at a time")

    def state_dict(self) -> State:
        return {} if self._v is None else {"v": self._v}

    def load_state_dict(self, state: State) -> None:
        self._v = state.get("v")
