"""Draws the clients that take part in a federated round, and those that leave it. Both are functions of the seed and
the round, so that every client and the server know them without a message.

With `sampling=weighted` the m clients of a round are drawn by their share n_k / n of all samples, with replacement, and
their mean is plain, one that was drawn twice counting twice (Li et al. 2020, "On the Convergence of FedAvg on Non-IID
Data", ICLR, scheme I; arXiv 1907.02189). So a client counts as much as it has samples, on average over rounds.

With `dropout=p` a client that was sampled leaves the round with probability p, after one of its L steps, each as likely
as another. What it has trained is lost, but for its optimizer's state; the round's mean is of those that deliver, and
where nobody does, w stays.

`Participation` holds the settings, and `Rounds` the rounds of one run. `OwnRounds` is the progress of one worker
through them: of a worker that is one client (`OneClient`), or that trains several (multiplexed.py).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from torch import Tensor

from ..strategies.core.cost import World
from ..strategies.core.state import State

_LEAVES, _DRAWN = 1, 2  # tell these draws from those of `sampled`; not 0, which numpy takes for nothing


@lru_cache(maxsize=256)
def sampled(seed: int, number: int, clients: int, count: int) -> frozenset[int]:
    """The `count` of `clients` that take part in round `number`, all alike."""
    return frozenset(np.random.default_rng((seed, number)).choice(clients, count, replace=False).tolist())


@lru_cache(maxsize=256)
def drawn(seed: int, number: int, shares: tuple[float, ...], count: int) -> Mapping[int, int]:
    """Returns how often each client is drawn in round `number`, in `count` draws by its share with replacement.

    Clients that are not drawn are left out.
    """
    draws = np.random.default_rng((seed, number, _DRAWN)).choice(len(shares), count, p=shares)
    return dict(sorted(Counter(draws.tolist()).items()))


@lru_cache(maxsize=1024)
def leaves_after(seed: int, number: int, client: int, probability: float, length: int) -> int | None:
    """The step of the round's `length`, from 1, after which this client leaves it; None: it stays."""
    generator = np.random.default_rng((seed, number, client, _LEAVES))
    return int(generator.integers(1, length + 1)) if generator.random() < probability else None


@dataclass(frozen=True)
class Participation:
    """`fraction`: C of the clients take part in a round. `sampling`: drawn all alike, or by their samples, with
    replacement. `dropout`: how likely one leaves a round. `seed`: of all that.

    `shares`, where it is asked for: n_k / n of each client k.
    """

    fraction: float
    sampling: Literal["uniform", "weighted"]
    dropout: float
    seed: int

    def per_round(self, clients: int) -> int:
        """m = max(C K, 1)"""
        return max(round(self.fraction * clients), 1)

    def sampled(self, number: int, clients: int, shares: tuple[float, ...]) -> frozenset[int]:
        """Returns the clients, of so many, that take part in round `number`."""
        if self.sampling == "weighted":
            return frozenset(drawn(self.seed, number, shares, self.per_round(clients)))
        return sampled(self.seed, number, clients, self.per_round(clients))

    def weight(self, client: int, samples: int, number: int, shares: tuple[float, ...]) -> int:
        """n_k; where clients are drawn by their samples, how often this one was."""
        if self.sampling == "uniform" or samples == 0:
            return samples
        return drawn(self.seed, number, shares, self.per_round(len(shares)))[client]

    def leaves_after(self, client: int, number: int, length: int) -> int | None:
        """The step of round `number`, 1 to `length`, after which `client` leaves it; None: it stays."""
        return None if self.dropout == 0 else leaves_after(self.seed, number, client, self.dropout, length)

    def often(self, world: World, length: int) -> tuple[float, float]:
        """(fetches, deliveries) of a step that a client trains, on average; `length` steps are a round."""
        if self.dropout == 0:
            return world.often(length, first=1), world.often(length)
        if world.steps is None:
            steps = (1 - self.dropout) * length + self.dropout * (length + 1) / 2
            return 1 / steps, (1 - self.dropout) / steps
        joined = delivered = trained = 0
        for number in range(-(-world.steps // length)):
            steps = min(length, world.steps - number * length)
            for client in sampled(self.seed, number, world.replicas, self.per_round(world.replicas)):
                after = self.leaves_after(client, number, length)
                joined += 1
                delivered += after is None and steps == length
                trained += steps if after is None else min(after, steps)
        return joined / trained, delivered / trained

    @property
    def varies(self) -> str:
        """Returns why the means of `often` may not be met; "" if they are."""
        if self.dropout > 0 and self.sampling == "weighted":
            return "sync.sampling: who is drawn, and so who leaves, depends on the samples of each client"
        return ""


@dataclass(frozen=True)
class Rounds:
    """The rounds of a run. `shares`: n_k / n of each of the K clients. `length`: L, the steps of a round."""

    participation: Participation
    shares: tuple[float, ...]
    length: int

    @property
    def clients(self) -> int:
        """K"""
        return len(self.shares)

    @property
    def per_round(self) -> int:
        """m"""
        return self.participation.per_round(self.clients)

    def sampled(self, number: int) -> frozenset[int]:
        """S, of round `number`."""
        return self.participation.sampled(number, self.clients, self.shares)

    def weight(self, client: int, samples: int, number: int) -> int:
        """Returns the weight in the mean of this client's delivery in round `number`, trained on so many samples."""
        return self.participation.weight(client, samples, number, self.shares)

    def leaves_after(self, client: int, number: int) -> int | None:
        """The step of round `number`, from 1, after which `client` leaves it; None: it stays."""
        return self.participation.leaves_after(client, number, self.length)


class OwnRounds(ABC):
    """A worker's. `number`: the round that it is in (`inside`), or enters next. `samples`: that it has trained on in
    this one. `left`: rounds that it has left before their end.
    """

    def __init__(self) -> None:
        self.number, self.inside, self.samples, self.left = 0, False, 0, 0
        self._at = 0  # the step of this round, from 1

    @abstractmethod
    def next_step(self, step: int) -> int:
        """The step of the run that this worker takes next: `step`, or a later one."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Says whether the delivery is complete after the step that `next_step` returned last."""

    @property
    def leaves(self) -> bool:
        """Says whether the worker leaves the round with that step."""
        return False

    @property
    def will_leave(self) -> bool:
        """Says whether the worker is to leave this round, now or later."""
        return False

    def enter(self) -> None:
        """The round, whose w has come."""
        self.inside, self.samples = True, 0

    def hands_over(self) -> bool:
        """Says whether another client begins with this step; the model has the round's w then."""
        return False

    def count(self, samples: int) -> None:
        """Counts the samples of the step that begins."""
        self.samples += samples

    def bring(self) -> None:
        """Turns the model into the delivery."""

    def close(self) -> None:
        """Ends the round for this worker, as nothing is left to do in it."""
        self.inside = False
        self.number += 1

    def leave(self) -> None:
        self.close()
        self.left += 1

    def state_dict(self) -> State:
        """Returns the state inside of a round."""
        return {"seen": self.samples, "steps": self._at}

    def load_state_dict(self, state: State) -> None:
        """Restores the state inside of round `number`, whose w the model has."""
        self.inside, self.samples = True, state["seen"]

    def buffers(self) -> list[Tensor]:
        return []


class OneClient(OwnRounds):
    """The rounds of a worker that is one client.

    The worker takes all steps of the rounds for which it is drawn, or the steps until it leaves. It skips other rounds.
    """

    def __init__(self, rounds: Rounds, client: int) -> None:
        super().__init__()
        self._rounds, self._client = rounds, client

    def next_step(self, step: int) -> int:
        length = self._rounds.length
        if not self.inside:
            if step // length < self.number:  # which began before this one left it
                step = self.number * length
            self.number = step // length
            while not self._takes(step - self.number * length + 1):
                self.number += 1
                step = self.number * length
        self._at = step - self.number * length + 1
        return step

    def _takes(self, at: int) -> bool:
        """The step `at` of this round."""
        after = self._leaves_after
        return self._client in self._rounds.sampled(self.number) and (after is None or at <= after)

    @property
    def _leaves_after(self) -> int | None:
        return self._rounds.leaves_after(self._client, self.number)

    @property
    def is_over(self) -> bool:
        return self._at == self._rounds.length

    @property
    def leaves(self) -> bool:
        return self._leaves_after is not None and self._at >= self._leaves_after

    @property
    def will_leave(self) -> bool:
        return self._leaves_after is not None
