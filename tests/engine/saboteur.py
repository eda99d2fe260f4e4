"""A user's own strategy, of which one worker does harm."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from paceline.comm import Comm, Work
from paceline.comm.process import ProcessComm
from paceline.conf.errors import ConfigError
from paceline.strategies import Batch
from paceline.strategies.core.batch import BeforeBackward
from paceline.strategies.core.loss import Loss
from paceline.strategies.data_parallel import DataParallel
from paceline.tasks.base import Data, DataSpec, Split

FOREVER = 3600.0  # seconds
MANY = 200_000  # of five characters
NUMBERS = 1000


class Numbered(Data):
    """Samples of two classes, whose first feature is their number, divided by NUMBERS."""

    def __init__(self, limit: int = 200) -> None:
        self.limit = limit

    @property
    def spec(self) -> DataSpec:
        return DataSpec((8,), torch.float32, (), 2, train_size=self.limit, test_size=32)

    def load(self) -> tuple[Split, Split]:
        inputs = torch.randn(self.limit + 32, 8, generator=torch.Generator().manual_seed(0))
        inputs[:, 0] = torch.arange(len(inputs)) / NUMBERS
        targets = (inputs[:, 1] > 0).long()
        return Split(inputs[:-32], targets[:-32]), Split(inputs[-32:], targets[-32:])


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
            "fork",
            "fork_and_raise",
        ] = "none",
        rank: int = 1,
        at: int = 3,
        pause: float = 0.0,
        writes: str | None = None,
    ) -> None:
        """`at`: -1 is before the first, while workers start. `pause`: seconds. `writes`: a folder for samples taken.

        `babble`: raise with a megabyte of words. `lie`: raise what looks like success. `missum`: from now on sum, and
        send, the first three entries of each tensor. `refuse`: raise an error of the configuration when it is made.
        `leave_a_lock`: make a semaphore, as libraries do. `vanish`: leave without a word and with status 0.
        `fork`: make a child that leaves by sys.exit, and wait for it. `fork_and_raise`: the child raises.
        """
        if act == "refuse" and multiprocessing.current_process().name == f"paceline-worker-{rank}":
            raise ConfigError("data.root=/data: is not on this host")
        self.act, self.rank, self.at, self.pause, self.writes = act, rank, at, pause, writes
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
        if self.writes is not None:
            assert isinstance(batch.inputs, Tensor)
            taken = [round(NUMBERS * value) for value in batch.inputs[:, 0].tolist()]
            with (Path(self.writes) / f"{os.getpid()}").open("a") as file:
                file.write(f"{json.dumps([Path(os.environ.get('PACELINE_JOB', '0')).name, batch.step, taken])}\n")
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
            case "fork" | "fork_and_raise":
                if (child := os.fork()) == 0:
                    if self.act == "fork":
                        sys.exit(5)
                    raise SabotageError("this is the child")
                deadline = time.monotonic() + 20
                while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
                    time.sleep(0.01)
                if ended == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    raise SabotageError("the child hangs")
                print("the child left with", os.waitstatus_to_exitcode(ended[1]))
            case "sleep":
                time.sleep(FOREVER)
