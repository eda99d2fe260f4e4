"""A user's own strategy, of which one worker does harm."""

import os
import sys
import time
from typing import Literal

from torch import Tensor, nn

from paceline.comm import Comm
from paceline.comm.process import ProcessComm
from paceline.strategies import Batch
from paceline.strategies.base import BeforeBackward, Loss
from paceline.strategies.data_parallel import DataParallel

FOREVER = 3600.0  # seconds


class SabotageError(Exception):
    """What the harmful worker raises."""


class Sabotage(DataParallel):
    """Data parallel training in which worker `rank` does `act` in its step `at`; all pause in every step."""

    def __init__(
        self,
        act: Literal["none", "print", "raise", "exit", "vanish", "sleep"] = "none",
        rank: int = 1,
        at: int = 3,
        pause: float = 0.0,
    ) -> None:
        """`pause`: seconds. `vanish`: leave without a word and with status 0."""
        self.act, self.rank, self.at, self.pause = act, rank, at, pause
        self._step = 0

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        super().prepare(model, loss, comm, before_backward)
        assert isinstance(comm, ProcessComm)
        self._harmful = comm.board.rank == self.rank

    def forward_backward(self, batch: Batch) -> Tensor | None:
        time.sleep(self.pause)
        if self._harmful and self._step == self.at:
            self._harm()
        self._step += 1
        return super().forward_backward(batch)

    def _harm(self) -> None:
        match self.act:
            case "print":
                print("hello from the saboteur")
            case "raise":
                raise SabotageError("the coffee machine is on fire")
            case "exit":
                sys.exit(0)
            case "vanish":
                os._exit(0)
            case "sleep":
                time.sleep(FOREVER)
