"""Synthetic sparse samples of two classes: a few of very many features each, as words in documents."""

from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Split


class Sparse(Data):
    """`samples` for training and a fifth as many for test, drawn from `seed`; every non-zero is 1.

    Features come in pairs of equal popularity, one leaning to each class; pair i is drawn in proportion to
    (i + 1)^-skew. A sample draws its features one by one, until it has `nonzeros` different ones, and each leans to
    the other class with probability `noise`. Which number a feature has says nothing of its popularity.
    Raises ConfigError where a sample would have more than half of the features.
    """

    def __init__(
        self,
        features: Annotated[int, Ge(2)] = 200_000,
        nonzeros: Annotated[int, Ge(1)] = 50,
        samples: Annotated[int, Ge(1)] = 20_000,
        noise: Annotated[float, Ge(0), Le(0.5)] = 0.3,
        skew: Annotated[float, Ge(0), Le(2)] = 0.5,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        if 2 * nonzeros > features // 2 * 2:
            raise ConfigError(
                f"data.nonzeros={nonzeros}: sparse samples have half of data.features={features} at the most."
            )
        self.features, self.nonzeros, self.samples = features, nonzeros, samples
        self.noise, self.skew, self.seed = noise, skew, seed

    @property
    def spec(self) -> DataSpec:
        return DataSpec(
            (2, self.nonzeros), torch.float64, (), 2, self.samples, max(self.samples // 5, 1), features=self.features
        )

    def load(self) -> tuple[Split, Split]:
        rng = np.random.default_rng(self.seed)
        popularity = np.arange(1, self.features // 2 + 1, dtype=np.float64) ** -self.skew  # of pairs
        below = np.cumsum(popularity / popularity.sum())
        below[-1] = 1.0  # whatever rounding made of it
        names = rng.permutation(self.features)

        def draw(labels: np.ndarray) -> np.ndarray:
            """A feature for each of `labels`: twice its pair, plus the class that it leans to."""
            pairs = np.searchsorted(below, rng.random(labels.shape), side="right")
            return 2 * pairs + (labels ^ (rng.random(labels.shape) < self.noise))

        def split(samples: int) -> Split:
            labels = rng.integers(2, size=samples)
            wanted = np.repeat(labels[:, None], self.nonzeros, axis=1)
            drawn = draw(wanted)
            unfinished = np.arange(samples)
            while len(unfinished) > 0:
                rows = np.sort(drawn[unfinished], axis=1)
                again = np.zeros(rows.shape, dtype=bool)
                again[:, 1:] = rows[:, 1:] == rows[:, :-1]
                rows[again] = draw(wanted[unfinished][again])
                drawn[unfinished] = rows
                unfinished = unfinished[again.any(axis=1)]
            return Split(pairs_of(names[drawn], np.ones(drawn.shape)), torch.from_numpy(labels).long())

        return split(self.samples), split(max(self.samples // 5, 1))

    def how_to_get(self) -> str:
        return "They are made up as they are loaded."

    def found(self) -> str | None:
        return "made up from data.seed"


def pairs_of(features: np.ndarray, values: np.ndarray) -> Tensor:
    """[n, k] and [n, k] -> [n, 2, k] float64, as `DataSpec` has sparse inputs."""
    return torch.from_numpy(np.stack([features, values], axis=1).astype(np.float64))
