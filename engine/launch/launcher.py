"""The interface of a launcher: it starts the workers of a run, watches and ends them.

To add one (a cluster's scheduler, say), derive a class in a file of its own and choose it in `launcher_on`; what can be
said of its workers before they start is a `FabricKind` (fabrics/kinds.py).
"""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from ...comm.handshake import Endpoint
from ...tracking.run_directory import RunDirectory
from ..config.experiment import Experiment
from ..fabrics.assignment import Assignment
from ..fabrics.kinds import FabricKind
from ..fabrics.layout import RunLayout
from ..features.feature import Parts
from .local_workers import Ended

Opened = tuple[RunDirectory, Path | None]


class Stoppable(Protocol):
    """The workers of a run, wherever they are."""

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Asks the workers to stop after their present step; their run is recorded as stopped by signal `number`."""
        ...


class Handle(Stoppable, Protocol):
    """The workers of a run, which have been started here."""

    @property
    def stop_signal(self) -> int:
        """The signal for which they were asked to stop; 0 where they were not."""
        ...

    @property
    def has_started(self) -> bool:
        """Returns whether all of them have met and train."""
        ...

    def watch(self) -> list[Ended]:
        """Wait until the run is over; returns those whose end was its end."""
        ...

    def stop(self, number: int) -> None:
        """Handles a signal: the first asks the workers to save and stop, the second ends them."""
        ...

    def kill(self) -> None:
        """Ends the workers that are left. Called at the end of every run."""
        ...


class Launcher(ABC):
    def __init__(self, fabric: FabricKind) -> None:
        """`fabric`: where its workers are."""
        self.fabric = fabric

    # -- in the process that was asked for the run, or in each of those that torchrun started

    def open(
        self, experiment: Experiment, allowed: tuple[str, ...], layout: RunLayout, make: Callable[[], Opened]
    ) -> Opened:
        """The run's directory, and the checkpoint to go on from, the same in all processes; `make` makes it, in the one
        that `tells`.
        """
        return make()

    @abstractmethod
    def start(self, assignment: Assignment, layout: RunLayout, survives: bool, preload: tuple[str, ...]) -> Handle:
        """`survives`: the others go on when a worker dies; all but replica 0 and servers may then.

        `preload`: modules to import once, before workers are forked.
        """

    def is_complete(self, run: Path) -> bool:
        """Returns whether the run that was watched came to its end, be it that no step was taken (outcome.py)."""
        summary = RunDirectory(run).read_summary()
        return summary is not None and summary["status"] in ("completed", "failed")

    def process_of(self, rank: int) -> int:
        """The process, and so the log, in which worker `rank` is."""
        return rank

    # -- in a process that `start` made

    def work(
        self,
        rank: int,
        store: Endpoint,
        assignment: Assignment,
        parts: Parts,
        device: torch.device,
        started: Callable[[], None],
    ) -> None:
        """Take part in the run to its end. `started` is called once it trains, or serves."""
        raise AssertionError(f"{type(self).__name__} starts no processes")

    def failed_rank(self) -> int | None:
        """Returns the worker that failed, of several in one process."""
        return None
