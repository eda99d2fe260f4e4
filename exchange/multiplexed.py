"""More clients than workers: in each round of FedAvg those that are sampled are shared out over the workers, and a
worker trains its own one after another, each from the round's weights w.

Of the m clients of a round, in ascending order, the i-th is the one that worker i mod P trains as its (i div P)-th.
Each takes E L steps there, L being an epoch of the client that has most samples, and those that it has no samples left
for are empty. A worker's steps of a round follow one another; the round is as many steps as the first worker has, E L
ceil(m / P).

What a worker delivers is where one client with the samples of all of its own would have gone:

    n = sum_k n_k,   w + sum_k (n_k / n) (w_k - w)

of which the server's mean over workers is the mean over clients, but for the order of sums. That is Algorithm 1 of N
clients, and sends what P clients send. Each client begins with a new optimizer. A worker that dies takes its clients of
that round with it, and of later rounds those that would be its own.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..conf.errors import ConfigError
from ..strategies.core.cost import World
from ..strategies.core.state import State
from .participation import OwnRounds, Participation, sampled


class Sampled(Protocol):
    """The clients of round `number`."""

    def __call__(self, number: int) -> Collection[int]: ...


@dataclass(frozen=True)
class ClientSchedule:
    """The schedule of clients on workers. `clients`: N. `in_round`: m, at least as many as `workers`. `epochs`: E."""

    clients: int
    in_round: int
    workers: int
    epochs: int
    sampled: Sampled

    @classmethod
    def of(cls, participation: Participation, clients: int, workers: int, epochs: int) -> "ClientSchedule":
        """Raises `ConfigError` where a worker would have none of a round's clients."""
        m = participation.per_round(clients)
        if m < workers:
            raise ConfigError(
                f"sync.clients={clients}: of them sync.fraction={participation.fraction} is {m} in a round, and "
                f"{workers} workers take part in each; at most hardware.workers={m}, or a larger fraction"
            )
        return cls(clients, m, workers, epochs, partial(sampled, participation.seed, clients=clients, count=m))

    @property
    def turns(self) -> int:
        """Returns the turns of the first worker in a round: no worker has more."""
        return -(-self.in_round // self.workers)

    def turns_of(self, worker: int) -> int:
        return len(range(worker, self.in_round, self.workers))

    def through(self, steps: int, steps_per_epoch: int) -> frozenset[int]:
        """Returns the workers that are through with a round after so many of its steps.

        Args:
            steps: Of the round.
            steps_per_epoch: Of the run.
        """
        a_turn = self.epochs * steps_per_epoch // self.turns
        return frozenset(k for k in range(self.workers) if self.turns_of(k) * a_turn <= steps)

    def steps_per_epoch(self, of_client: int) -> int:
        """Returns the steps of an epoch of the run; a round is E of them. `of_client`: L, those of a client's."""
        return self.turns * of_client

    def at(self, step: int, worker: int, of_client: int) -> tuple[int, int] | None:
        """(client, its own step) that the worker trains in `step` of the run; None where it is through with its round.

        A client's own steps count on over rounds, as if each round were its own: round r begins with r E L.
        """
        a_turn = self.epochs * of_client
        number, rest = divmod(step, self.turns * a_turn)
        turn, own = divmod(rest, a_turn)
        place = turn * self.workers + worker
        if place >= self.in_round:
            return None
        return sorted(self.sampled(number))[place], number * a_turn + own

    def often(self, world: World) -> tuple[float, float]:
        """Returns the mean rounds begun, and rounds completed, per step that a worker trains."""
        assert world.steps_per_epoch is not None
        length = self.epochs * world.steps_per_epoch
        a_turn = length // self.turns
        if world.steps is None:
            often = self.workers / (self.in_round * a_turn)
            return often, often
        rounds, rest = divmod(world.steps, length)
        of_round = [self.turns_of(worker) * a_turn for worker in range(self.workers)]
        trained = sum(rounds * own + min(rest, own) for own in of_round)
        begun = self.workers * (rounds + (rest > 0))
        return begun / trained, (self.workers * rounds + sum(rest >= own for own in of_round)) / trained


class Multiplexed(OwnRounds):
    """The rounds of a worker that trains several clients in each. `weights`: of the model, [n]; training changes them
    in place.
    """

    def __init__(self, shares: ClientSchedule, worker: int, steps_per_epoch: int, weights: Tensor) -> None:
        """`steps_per_epoch`: of the run."""
        super().__init__()
        self._length = shares.epochs * steps_per_epoch
        self._a_turn = self._length // shares.turns
        self._steps = shares.turns_of(worker) * self._a_turn  # of a round
        self._weights = weights  # w_k
        self._w, self._sum = torch.empty_like(weights), torch.zeros_like(weights)  # w, sum_k n_k (w_k - w)
        self._turn, self._trains = 0, -1  # of this step; whose turn it was
        self._n, self._n_k = 0, 0

    def next_step(self, step: int) -> int:
        if not self.inside:
            self.number = max(step // self._length, self.number)
            step = max(step, self.number * self._length)
            if step - self.number * self._length >= self._steps:
                self.number += 1
                step = self.number * self._length
        own = step - self.number * self._length
        self._turn, self._at = own // self._a_turn, own + 1
        return step

    @property
    def is_over(self) -> bool:
        return self._at == self._steps

    def enter(self) -> None:
        super().enter()
        self._w.copy_(self._weights)
        self._sum.zero_()
        self._n, self._n_k, self._trains = 0, 0, self._turn

    def hands_over(self) -> bool:
        if self._turn == self._trains:
            return False
        self._add()
        self._weights.copy_(self._w)
        self._trains = self._turn
        return True

    def count(self, samples: int) -> None:
        super().count(samples)
        self._n_k += samples

    def bring(self) -> None:
        """w <- w + (1/n) sum_k n_k (w_k - w): where all of them went."""
        self._add()
        self._weights.copy_(self._w)
        if self._n > 0:
            self._weights.add_(self._sum, alpha=1 / self._n)

    def _add(self) -> None:
        """sum <- sum + n_k (w_k - w)"""
        self._sum.add_(self._weights - self._w, alpha=self._n_k)
        self._n, self._n_k = self._n + self._n_k, 0

    def state_dict(self) -> State:
        own = {"sum": self._sum, "n": self._n, "n_k": self._n_k, "turn": self._trains}
        return {**super().state_dict(), "turns": own}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        own = state["turns"]
        self._w.copy_(self._weights)
        self._sum.copy_(own["sum"])
        self._n, self._n_k, self._trains = own["n"], own["n_k"], own["turn"]

    def buffers(self) -> list[Tensor]:
        return [self._w, self._sum]


@runtime_checkable
class Sharing(Protocol):
    """A sync mode that deals the data to clients, and shares these out over its workers."""

    def shares(self, replicas: int) -> ClientSchedule | None:
        """Returns who trains whom when; None where each replica is one client."""
        ...


def shares_of(sync: object, replicas: int) -> ClientSchedule | None:
    """Returns how a sync mode shares its clients out; None where it has none but its replicas."""
    return sync.shares(replicas) if isinstance(sync, Sharing) else None
