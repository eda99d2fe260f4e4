"""Bucketing (Karimireddy, He and Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR,
Algorithm 1; arXiv 2006.09365).

    pi = a random permutation of the n rows
    y_i = the mean of rows pi(s i), ..., pi(s i + s - 1)        i = 0, ..., ceil(n / s) - 1

The rule gets n / s rows, of which still f may lie: each liar spoils one bucket at most. The last bucket may have fewer
rows. The permutation is drawn from the seed and the step, alike on all workers.

Use it where data differ by worker and liars are few: the bound falls by s.
"""

import math

import torch
from torch import Generator, Tensor

from ....conf.errors import ConfigError
from .base import Before


class Bucketing(Before):
    def __init__(self, bucket: int = 2) -> None:
        """`bucket`: s, rows. Raises `ConfigError`."""
        if bucket < 1:
            raise ConfigError(f"aggregate.bucket={bucket}: must be at least 1, the rows of one bucket")
        self.s = bucket

    def mix(self, rows: Tensor, f: int, draws: Generator) -> Tensor:
        order = torch.randperm(len(rows), generator=draws).to(rows.device)
        # divided first: the sum of two finite lies may not be finite
        return torch.stack([(rows[bucket] / len(bucket)).sum(0) for bucket in order.split(self.s)])

    def rows(self, rows: int) -> int:
        return math.ceil(rows / self.s)
