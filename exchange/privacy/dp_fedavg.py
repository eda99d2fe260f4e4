"""DP-FedAvg (McMahan, Ramage, Talwar and Zhang 2018, "Learning Differentially Private Recurrent Language Models", ICLR,
Algorithm 1 with flat clipping and fixed denominator; arXiv 1710.06963). Of the change Delta_k = w_k - w of each of the
m clients of a round

    Delta_k <- Delta_k min(1, C / ||Delta_k||)
    Delta = 1/m (sum_k Delta_k + N(0, sigma^2 C^2 I))

and the server steps with Delta (`server`). m is the number of those sampled, whoever dies meanwhile. A client counts
once, however many samples it has: what is hidden is whether a client took part at all.

With `secure=bonawitz` each client clips its own change, a little shorter, so that it is no longer than C once it is
rounded; the server learns the sum, adds the noise, and divides by m, whoever has vanished. A client that lies does not
clip.

Deviations from the paper: m clients of K are sampled, where the paper takes each with probability q = m / K; the
accountant's epsilon is that of the paper's sampling, and exact where all take part. The server clips, so that a client
that lies has no larger part than others. The noise follows from the run's seed, so that a run repeats: who knows the
seed can take it off again. clip=null with noise=0 is plain FedAvg, bit for bit.

Cost: nothing is sent. The server goes twice through each change.

Use it where a model is given away and nobody may learn from it whether a client took part; the server itself is trusted
here. It takes hundreds of clients a round, as noise is divided by m.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from ...conf.errors import ConfigError
from ...strategies.core.privacy import Above0, Privacy, Share, check_clipped, noise_of
from ...strategies.core.terms import (
    ADDED_UP,
    CLIENT_ROUNDS,
    EQUAL_CLIENTS,
    UNINFORMED,
    WEIGHTS_ALONE,
    WHOLE_REPLICA,
    Need,
)
from ..seeded import generator
from .clipping import factors


class DPFedAvg(Privacy):
    of = "client"

    def __init__(
        self,
        clip: Above0 | None = 1.0,
        noise: Annotated[float, Ge(0)] | None = None,
        epsilon: Above0 | None = None,
        delta: Share | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`clip`, `noise`: C and sigma, None for 1. `epsilon`: finds sigma, in place of `noise`. `delta`: None for
        1 / K^1.1. `seed`: of the noise. Raises `ConfigError`.
        """
        self.clip, self.noise = clip, noise_of(noise, epsilon)
        self.epsilon, self.delta, self.seed = epsilon, delta, seed
        check_clipped(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        if not self.bounds:
            return ()
        hides = "hides a client in the sum of all changes"
        return (
            Need(WHOLE_REPLICA, "clips each client's change as a whole"),
            Need(CLIENT_ROUNDS, hides),
            Need(ADDED_UP, hides),
            Need(UNINFORMED, hides),
            Need(WEIGHTS_ALONE, "clips changes of weights, and nothing else that a client delivers"),
            Need(EQUAL_CLIENTS, "counts on clients that are drawn with equal chances and stay"),
        )

    def mean(self, ways: Mapping[int, Tensor], sampled: int, number: int) -> Tensor:
        """[d] by client, Delta_k, which are written over; m; the round -> [d], Delta. Raises `NotFiniteError`."""
        assert ways
        total = torch.zeros_like(next(iter(ways.values())))
        for client, way in sorted(ways.items()):
            total += self.clipped(way, client, number)
        return self.noised(total, sampled, number)

    def clipped(self, way: Tensor, client: int, number: int, rounding: float = 0.0) -> Tensor:
        """[d], Delta_k, which is written over, no longer than C once it was made up to `rounding` longer.

        Raises `NotFiniteError`, or `ConfigError` as `longest` does.
        """
        [factor] = factors([way[None]], self.longest(rounding), f"what client {client} brought in round {number}")
        return way.mul_(factor)

    def longest(self, rounding: float) -> float:
        """C, less what rounding may add to the length of a change. Raises `ConfigError` where nothing is left."""
        assert self.clip is not None
        if rounding >= self.clip:
            raise ConfigError(
                f"privacy.clip={self.clip:g}: changes are rounded to secure.bits behind the point, which may make one "
                f"{rounding:.3g} longer, more than it may be. Choose more secure.bits, or a larger privacy.clip."
            )
        return self.clip - rounding

    def noised(self, total: Tensor, sampled: int, number: int) -> Tensor:
        """[d], the sum of clipped changes, which is written over -> [d], Delta."""
        assert self.clip is not None
        drawn = torch.randn(len(total), generator=generator("dp_fedavg", self.seed, number), dtype=total.dtype)
        return total.add_(drawn.to(total.device), alpha=self.noise * self.clip).div_(sampled)


def of_clients(privacy: Privacy | None) -> DPFedAvg | None:
    """Returns the mechanism that hides clients in the sum of their changes; None where changes stay as they are.

    Raises `ConfigError` for a mechanism of another class.
    """
    if privacy is None or not privacy.bounds or privacy.of != "client":
        return None
    if not isinstance(privacy, DPFedAvg):
        raise ConfigError(
            f"{type(privacy).__name__} hides clients, and is not derived from DPFedAvg", about=("privacy",)
        )
    return privacy
