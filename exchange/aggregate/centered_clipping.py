"""Centered clipping (Karimireddy, He and Jaggi 2021, "Learning from History for Byzantine Robust Optimization", ICML,
equation CC; arXiv 2012.10333).

    v <- v + 1/n sum_i (x_i - v) min(1, tau / ||x_i - v||)        `steps` times, from the v of the time before

A row pulls v by tau / n at most, however long it is. v is remembered from step to step, zero at first; it is saved with
a checkpoint. tau is a length in the units of the rows: too short, and training crawls; too long, and it is the mean.

Cost: every row must be there; `steps` passes over all of them, and memory for v.

Use it with workers that have momentum, whose rows change slowly, against lies that are small and always to one side.
"""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from ...strategies.core.state import State
from .base import Named, Robust


class CenteredClipping(Robust):
    traits = replace(Robust.traits, remembers=True, of_points=False)

    def __init__(
        self,
        f: int | None = None,
        before: Named = "none",
        bucket: int | None = None,
        tau: Annotated[float, Gt(0)] = 1.0,
        steps: Annotated[int, Gt(0)] = 3,
        seed: int = 0,
    ) -> None:
        """`tau`: the furthest that a row counts. Raises `ConfigError`."""
        super().__init__(f, before, bucket, seed)
        self.tau, self.steps = tau, steps
        self._v: Tensor | None = None

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        v = torch.zeros_like(rows[0]) if self._v is None else self._v.to(rows)
        for _ in range(self.steps):
            apart = rows - v
            lengths = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64)
            factors = (self.tau / lengths.clamp(min=self.tau)).to(rows.dtype)
            v = v + factors @ apart / len(rows)
        self._v = v
        return v.clone()

    def state_dict(self) -> State:
        return {} if self._v is None else {"v": self._v}

    def load_state_dict(self, state: State) -> None:
        self._v = state.get("v")
