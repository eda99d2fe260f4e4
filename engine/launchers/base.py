"""What a launcher is asked: to start the workers of a run, to watch and end them, and to refuse what it cannot do.

To add one (a cluster's scheduler, say), derive a class in a file of its own and choose it in `launcher_of`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from ...comm.handshake import Endpoint
from ...comm.network import Link, Network
from ...tracking.run_directory import RunDirectory
from ..compute import ComputeModel
from ..crew import Ended
from ..errors import ConfigError
from ..experiment import Experiment, Hardware, Machine

if TYPE_CHECKING:  # they ask for the launcher
    from ..assignment import Assignment
    from ..layout import Layout
    from ..parts import Parts


class Handle(Protocol):
    """The workers of a run, which have been started."""

    @property
    def stop_signal(self) -> int:
        """The signal for which they were asked to stop; 0 where they were not."""
        ...

    @property
    def has_started(self) -> bool:
        """Whether all of them have met and train."""
        ...

    def watch(self) -> list[Ended]:
        """Wait until the run is over; returns those whose end was its end."""
        ...

    def stop(self, number: int) -> None:
        """On a signal: the first asks the workers to save and stop, the second ends them."""
        ...

    def ask_to_stop(self) -> None:
        """After the step that they are in."""
        ...

    def kill(self) -> None:
        """Whoever is left. Called at the end of every run."""
        ...


def network_of_one(machine: Machine | None) -> Network | None:
    """That between the devices of one host, where it is described."""
    if machine is None or machine.link is None:
        return None
    link = Link(**machine.link.model_dump())
    return Network(between=link, inside=link)


class Launcher(ABC):
    """`saves`: workers keep checkpoints, from which a run that was stopped goes on; else `instead` says how to have it
    again. `modelled`: times are those of a model. `world_size`: the processes that are there already; None where this
    launcher starts them.
    """

    saves: bool = True
    instead: str = ""
    modelled: bool = False
    world_size: int | None = None

    def check(self, experiment: Experiment, resumes: bool) -> None:
        """Refuse what cannot be launched. Raises `ConfigError`."""

    def device(self, experiment: Experiment, layout: "Layout") -> torch.device:
        """That of the machine that `hardware` describes, else of this one.

        Raises `ConfigError` when CUDA is asked for and there are too few devices here.
        """
        hardware = experiment.hardware
        if (machine := hardware.machine) is not None:
            return torch.device("cuda" if machine.devices and hardware.device != "cpu" else "cpu")
        gpus = torch.cuda.device_count()
        enough = gpus >= layout.world_size
        if hardware.device == "cuda" and not enough:
            raise ConfigError(
                f"hardware.device=cuda: {layout.world_size} workers and servers need a GPU each, this host has {gpus}"
            )
        return torch.device("cuda" if hardware.device != "cpu" and enough else "cpu")

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...] | None:
        """Of each worker and server, by rank, numbered from 0; None where that is not known here."""
        return None

    def network(self, hardware: Hardware) -> Network | None:
        """The links that `hardware` describes, between any two workers; None where it does not describe them all."""
        return None

    def workers_per_host(self, hardware: Hardware) -> int | None:
        """Where `hardware` says it; None for one on each device, or for all."""
        return None

    def compute(self, hardware: Hardware) -> ComputeModel | None:
        """How long a step's computation takes, where that is modelled."""
        return None

    # -- in the process that was asked for the run, or in each of those that torchrun started

    def tells(self, layout: "Layout") -> bool:
        """Whether this process has the run's directory, and reports to whoever asked for it."""
        return True

    def open(
        self, experiment: Experiment, allowed: tuple[str, ...], layout: "Layout", make: Callable[[], RunDirectory]
    ) -> RunDirectory:
        """The run's directory, the same in all processes; `make` makes it, in the one that `tells`."""
        return make()

    @abstractmethod
    def start(self, assignment: "Assignment", layout: "Layout", survives: bool, preload: tuple[str, ...]) -> Handle:
        """`survives`: the others go on when a worker dies; all but replica 0 and servers may then.

        `preload`: modules to import once, before workers are forked.
        """

    def process_of(self, rank: int) -> int:
        """The process, and so the log, in which worker `rank` is."""
        return rank

    # -- in a process that `start` made

    def work(
        self,
        rank: int,
        store: Endpoint,
        assignment: "Assignment",
        parts: "Parts",
        device: torch.device,
        started: Callable[[], None],
    ) -> None:
        """Take part in the run to its end. `started` is called once it trains, or serves."""
        raise AssertionError(f"{type(self).__name__} starts no processes")

    def failed_rank(self) -> int | None:
        """Which worker failed, of several in one process."""
        return None
