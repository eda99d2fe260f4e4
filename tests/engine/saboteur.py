"""A user's own strategy, of which one worker does harm."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from paceline.comm import Comm, Work
from paceline.comm.process import ProcessComm
from paceline.conf.errors import ConfigError
from paceline.strategies import Batch
from paceline.strategies.core.batch import BeforeBackward
from paceline.strategies.core.loss import Loss
from paceline.strategies.data_parallel import DataParallel

FOREVER = 3600.0  # seconds
MANY = 200_000  # of five characters


class SabotageError(Exception):
    """What the harmful worker raises."""


class SlyError(SabotageError):
    """It has attributes of the names that ours have, and words for the terminal."""

    exit_code = 0
    missing = virtual_rank = details = object()

    def __init__(self) -> None:
        super().__init__("all is well\x1b[2J\x1b]0;owned\x07\u202e")


def _of_three(method: Callable[..., Work]) -> Callable[..., Work]:
    return lambda comm, tensor, *others: method(comm, tensor.detach().reshape(-1)[:3].clone(), *others)


class Sabotage(DataParallel):
    """Data parallel training in which worker `rank` does `act` in its step `at`; all pause in every step."""

    def __init__(
        self,
        act: Literal[
            "none",
            "print",
            "raise",
            "raise_on_a_full_disk",
            "refuse",
            "leave_a_lock",
            "babble",
            "lie",
            "missum",
            "exit",
            "vanish",
            "kill",
            "sleep",
        ] = "none",
        rank: int = 1,
        at: int = 3,
        pause: float = 0.0,
    ) -> None:
        """`at`: -1 is before the first, while workers start. `pause`: seconds.

        `babble`: raise with a megabyte of words. `lie`: raise what looks like success. `missum`: from now on sum, and
        send, the first three entries of each tensor. `refuse`: raise an error of the configuration when it is made.
        `leave_a_lock`: make a semaphore, as libraries do. `vanish`: leave without a word and with status 0.
        """
        if act == "refuse" and multiprocessing.current_process().name == f"paceline-worker-{rank}":
            raise ConfigError("data.root=/data: is not on this host")
        self.act, self.rank, self.at, self.pause = act, rank, at, pause
        self._step = 0

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        super().prepare(model, loss, comm, before_backward)
        assert isinstance(comm, ProcessComm)
        self._harmful = comm.key_values.rank == self.rank
        if self._harmful and self.at == -1:
            self._harm()

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
            case "raise_on_a_full_disk":  # where its log is
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, 1)
                os.dup2(full, 2)
                raise SabotageError("the coffee machine is on fire")
            case "leave_a_lock":
                self.lock = multiprocessing.get_context("forkserver").Lock()
            case "babble":
                raise SabotageError(f"the first word {MANY * 'word '}the last word")
            case "lie":
                raise SlyError
            case "missum":
                for name in ("all_reduce", "sum_in_memory", "isend"):
                    setattr(ProcessComm, name, _of_three(getattr(ProcessComm, name)))
            case "exit":
                sys.exit(0)
            case "vanish":
                os._exit(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(FOREVER)
