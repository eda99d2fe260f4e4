"""FLTrust (Cao et al. 2021, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS, section IV;
arXiv 2012.13995).

    t_i = max(0, cos(x_i, g_0))
    sum_i t_i (||g_0|| / ||x_i||) x_i / sum_i t_i

g_0 is the gradient of one who is trusted. A row that points away from it counts nothing, and no row counts by length.
Any number of the others may lie. Where all t_i are 0 the result is 0.

Deviation: the paper's server has a small clean data set of its own; here one of the replicas, `trusted`, is taken at
its word, and its row is g_0. It is not among the rows that are weighed.

Cost: every row must be there; a few passes over all of them.

Use it where one worker, or its data, is known to be honest: then most of the others may lie.
"""

import torch
from torch import Tensor

from ...conf.errors import ConfigError
from .base import Aggregator, AggregatorTraits


class FLTrust(Aggregator):
    traits = AggregatorTraits(robust=True, of_points=False, bound="two rows at least, one of which is trusted")

    def __init__(self, trusted: int = 0) -> None:
        """`trusted`: a replica. Raises `ConfigError`."""
        if trusted < 0:
            raise ConfigError(f"aggregate.trusted={trusted}: must be a replica, from 0 on")
        self.first = self.trusted = trusted

    def most(self, rows: int) -> int:
        return rows - 1

    def check(self, rows: int) -> None:
        assert self.first is not None
        if rows < 2 or self.first >= rows:
            raise ConfigError(
                f"aggregate.trusted={self.first}: there are {rows} replicas, and it must be one of them, beside "
                "others. Choose another, or more hardware.workers."
            )

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        g0, others = rows[0].double(), rows[1:].double()
        length, lengths = torch.linalg.vector_norm(g0), torch.linalg.vector_norm(others, dim=1)
        scales = torch.where(lengths > 0, length / lengths, torch.zeros_like(lengths))
        cosines = torch.where((lengths > 0) & (length > 0), others @ g0 / (lengths * length), torch.zeros_like(lengths))
        trust = cosines.clamp(min=0.0)
        total = trust.sum()
        if float(total) == 0:
            return torch.zeros_like(rows[0])
        return (trust * scales / total @ others).to(rows.dtype)
