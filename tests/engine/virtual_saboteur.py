"""A user's own sync mode, which does harm in its step `at`."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.strategies import Sync, Transfers, World
from paceline.strategies.core.sync import SyncTraits


class SabotageError(Exception):
    """What the harmful worker raises."""


class Harmful(Sync):
    """Workers meet at the end of each step; worker `rank` does `act`."""

    traits = SyncTraits(weights_agree=False)

    def __init__(
        self, act: Literal["wait", "raise", "raise_in_backward"], rank: int = 2, at: int = 3, password: str = ""
    ) -> None:
        self.act, self.rank, self.at, self._step, self.password = act, rank, at, 0, password

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        if self.act == "raise_in_backward" and self._is_harmful():
            roots[0].register_hook(self._fail)

    def update(self) -> None:
        if self.act == "wait" and self._is_harmful():
            self.comm.recv(torch.zeros(1), 0)
        if self.act == "raise" and self._is_harmful():
            self._fail()
        self._step += 1
        self.comm.barrier()
        self.optimizer.step()

    def _is_harmful(self) -> bool:
        return self.comm.rank == self.rank and self._step == self.at

    def _fail(self, gradient: Tensor | None = None) -> None:
        self.comm.elapse(1e-4)  # the others are in the middle of theirs
        raise SabotageError(f"the coffee machine is on fire{self.password}")

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()
