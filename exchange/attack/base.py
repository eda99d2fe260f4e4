"""An attack replaces the gradient of a Byzantine worker, or the change of its weights since all had the same.

The other workers and the servers are honest. A `Poison` attack works differently: its workers train on samples that
were tampered with, and send the gradients of those samples unchanged.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...batches import Samples
from ...conf.errors import ConfigError
from ...strategies.core.terms import (
    HONEST,
    ROWS_TOGETHER,
    UNINFORMED,
    WHOLE_REPLICA,
    WHOLE_VECTORS,
    Compatible,
    Need,
    Term,
    absent,
    required,
)


@dataclass(frozen=True)
class Seen:
    """The knowledge of a Byzantine worker beside its own row."""

    replicas: int  # n
    byzantine: int  # f
    replica: int  # who lies: the first of those who do, where they collude
    step: int
    honest: Tensor | None = None  # [m, d], the rows of those who do not lie, if it colludes


class Attack(Compatible, ABC):
    """An attack of Byzantine workers.

    `colludes`: Byzantine workers know the honest rows, so that their row is made where all rows meet; they all send the
    same then. `forges`: some send another row than their own. `coordinatewise`: each entry of a forged row depends on
    the same entry of the rows alone, so that a vector may be cut into pieces.
    """

    colludes: bool = False
    coordinatewise: bool = True
    forges: bool = True

    def __init__(self, workers: int | Sequence[int] = 1, from_step: int = 0) -> None:
        """`workers`: who lies; a number means so many of the last replicas, a list names them. `from_step`: they tell
        the truth in the steps (fedavg: rounds) before it. Raises `ConfigError`.
        """
        self.workers = workers if isinstance(workers, int) else sorted(set(workers))
        if (self.workers < 0) if isinstance(self.workers, int) else any(worker < 0 for worker in self.workers):
            raise ConfigError(f"attack.workers={workers}: must be at least 0, or a list of replicas from 0 on")
        if not isinstance(workers, int) and len(workers) > len(set(workers)):
            twice = next(worker for worker in workers if list(workers).count(worker) > 1)
            raise ConfigError(f"attack.workers={list(workers)}: names replica {twice} twice. Choose each once.")
        if from_step < 0:
            raise ConfigError(f"attack.from_step={from_step}: must be at least 0, the step in which lies begin")
        self.from_step = from_step

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((HONEST, not self.forges), (UNINFORMED, not self.colludes))

    @property
    def needs(self) -> tuple[Need, ...]:
        whole = "looks at each replica's gradient as a whole"
        return required(
            (Need(WHOLE_REPLICA, whole), not self.coordinatewise),
            (Need(WHOLE_VECTORS, whole), not self.coordinatewise),
            (Need(ROWS_TOGETHER, "has its workers know what the honest ones send"), self.colludes),
        )

    def byzantine(self, replicas: int) -> frozenset[int]:
        if isinstance(self.workers, int):
            return frozenset(range(max(replicas - self.workers, 0), replicas))
        return frozenset(self.workers)

    def check(self, replicas: int) -> None:
        """Raises `ConfigError` where there are fewer replicas than are to lie."""
        too_many = (
            self.workers > replicas if isinstance(self.workers, int) else max(self.workers, default=0) >= replicas
        )
        if too_many:
            raise ConfigError(
                f"attack.workers={self.workers}: there are {replicas} replicas"
                + ("" if isinstance(self.workers, int) else f", 0 to {replicas - 1}")
                + ". Choose fewer, or more hardware.workers."
            )
        if self.colludes and len(self.byzantine(replicas)) == replicas:
            raise ConfigError(
                f"attack.workers={self.workers}: all {replicas} replicas lie, and this attack is made of what honest "
                "ones send. Choose fewer, or more hardware.workers."
            )

    @abstractmethod
    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        """Turns the row that the worker should send, [d], into the row that it sends, [d]."""


class Poison(Attack):
    """An attack whose workers train on samples that were tampered with, and send the resulting gradients.

    The tampering depends on the step and the samples alone: all workers of a replica do the same, and a resumed run
    repeats it.
    """

    forges = False

    @abstractmethod
    def poisoned(self, inputs: Samples, targets: Tensor, classes: int) -> tuple[Samples, Tensor]:
        """Returns the inputs and targets, [n, ...] each, that replace these in training. The originals stay unchanged.

        All are on the host. `classes`: labels are below it.
        """

    def check_data(self, inputs: Mapping[str | int, torch.Size], floating: bool, classes: int) -> None:
        """Raises `ConfigError` where it cannot be done to samples of these shapes. `classes`: 0 where targets are
        numbers. `floating`: so are all inputs.
        """
        if classes == 0:
            raise ConfigError(
                "changes labels, and these data have none. Choose attack=none, or data with labels.", about=("attack",)
            )

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        return own
