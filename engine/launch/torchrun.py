"""The same worker under torchrun, or whoever else follows env://: each process composes the experiment for itself.

The chief makes the run directory and tells the others where: checkpoints of a pipeline on several hosts need a file
system that they share.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ...comm.connecting import connect_env
from ...comm.errors import PeerLostError
from ...comm.key_values import KeyValues
from ...comm.process import ProcessComm
from ...comm.rendezvous import job_of_torchrun
from ...comm.store import StoreGoneError
from ...conf.errors import ConfigError
from ...tracking.run_directory import RunDirectory
from ...tracking.values import flat
from ..base.errors import WorkerFailedError
from ..base.failures import exit_code_of, named, speaks_for_itself, traceback_of, words_of
from ..base.forked import children_leave
from ..base.parent_death import die_with_parent
from ..base.started import may_be_left_over
from ..config.experiment import Experiment
from ..fabrics.assignment import Assignment
from ..fabrics.kinds import Started
from ..fabrics.layout import RunLayout
from ..features.feature import Parts
from ..planning.build import assemble
from ..training.live_metrics import LiveRecord
from ..training.work import work
from ..training.worker import prepare_process
from .launcher import Handle, Launcher, Opened
from .local_workers import WORKER_FAILED, Ended
from .saved import what_is_saved


class Torchrun(Launcher):
    def __init__(self, fabric: Started) -> None:
        super().__init__(fabric)
        self._rank = fabric.rank
        self._joined: tuple[ProcessComm, Parts, torch.device] | None = None
        self._worker: _ThisWorker | None = None

    def open(
        self, experiment: Experiment, allowed: tuple[str, ...], layout: RunLayout, make: Callable[[], Opened]
    ) -> Opened:
        """All meet here. Raises `PeerLostError` where worker 0, which has the store, goes meanwhile."""
        try:
            return self._meet(experiment, allowed, layout, make)
        except StoreGoneError as error:
            raise _lost_worker_0(self._rank, error) from None

    def _meet(
        self, experiment: Experiment, allowed: tuple[str, ...], layout: RunLayout, make: Callable[[], Opened]
    ) -> Opened:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            die_with_parent(signal.SIGKILL)  # an agent that is killed would leave its worker alive
        job_of_torchrun()  # before the token is taken out of the environment
        parts = assemble(experiment, allowed, layout.world_size)
        device = prepare_process(experiment, parts, self._rank)
        with may_be_left_over():
            comm = connect_env(experiment.hardware.timeout, device)
        _check_devices(comm.devices[: layout.workers])
        try:
            check_alike(experiment, comm.key_values, layout.world_size)
        except ConfigError:
            comm.close()  # worker 0 has the store, in which the others read this
            raise
        self._joined = comm, parts, device
        if not self.fabric.tells(layout):
            return _told_of_run(comm, layout.chief)
        try:
            directory, checkpoint = make()
        except Exception as error:
            _tell(comm, {"refused": words_of(error), "status": exit_code_of(error) or WORKER_FAILED})
            comm.close()  # the others may read this in the store of this process
            raise
        _tell(comm, {"path": str(directory.path), "step": None if checkpoint is None else checkpoint.name})
        servers = layout.servers * layout.parts
        print(
            f"torchrun started {layout.world_size} processes: {layout.workers} workers, {servers} servers",
            file=sys.stderr,
        )
        return directory, checkpoint

    def start(self, assignment: Assignment, layout: RunLayout, survives: bool, preload: tuple[str, ...]) -> Handle:
        assert self._joined is not None
        comm, *_ = self._joined
        live = LiveRecord(assignment.run, layout, comm.seen) if self.fabric.tells(layout) else None
        self._worker = _ThisWorker(assignment, *self._joined, live)
        return self._worker

    def is_complete(self, run: Path) -> bool:
        """All processes say what the chief says: its run directory may not be on their hosts."""
        return self._worker is not None and self._worker.is_complete


def _lost_worker_0(rank: int, why: object) -> PeerLostError:
    return PeerLostError(f"worker {rank} lost worker 0: {why}", 0)


def _tell(comm: ProcessComm, told: dict[str, Any]) -> None:
    comm.key_values.post("run", json.dumps(told))


def _told_of_run(comm: ProcessComm, chief: int) -> Opened:
    """Returns what the chief made. Raises `WorkerFailedError` where it could not."""
    told = json.loads(comm.key_values.read("run", chief))
    if "refused" in told:
        comm.close()
        raise WorkerFailedError(f"worker {chief}: {told['refused']}", told["status"], [])
    directory = RunDirectory(Path(told["path"]))
    return directory, None if told["step"] is None else directory.checkpoints / told["step"]


def _check_devices(devices: Sequence[str]) -> None:
    """Hosts decide by themselves what `hardware.device=auto` is: all must come to the same."""
    if len(set(devices)) > 1:
        cpu, cuda = devices.index("cpu"), devices.index("cuda")
        raise ConfigError(
            f"hardware.device=auto: worker {cpu} computes on a CPU and worker {cuda} on a GPU, since their hosts "
            "differ. Choose hardware.device=cpu, or hosts with a GPU for each worker."
        )


def check_alike(experiment: Experiment, key_values: KeyValues, size: int) -> None:
    """Refuses processes with different configurations: each composes its own. `hardware` and `tracking` may differ.

    All processes call this, and all raise the same. Raises `ConfigError` or `HangError`.
    """
    chosen = flat(experiment.model_dump(exclude={"hardware", "tracking", "name"}), ".")
    own = {key.replace(".knobs.", ".").removesuffix(".name"): str(value) for key, value in chosen.items()}
    if key_values.rank == 0:
        key_values.post("configuration", json.dumps(own))
    first = json.loads(key_values.read("configuration", 0))
    key = min((key for key in first | own if first.get(key) != own.get(key)), default=None)
    found = (
        "" if key is None else f"{key}={own.get(key)}: worker {key_values.rank} has this, and worker 0 {first.get(key)}"
    )
    key_values.post(f"configured/{key_values.rank}", found)
    for rank in range(size):
        if said := key_values.read(f"configured/{rank}", rank):
            raise ConfigError(f"{said}. Start all processes with the same configuration")


class _ThisWorker:
    """The handle of the one worker that this process is."""

    def __init__(
        self,
        assignment: Assignment,
        comm: ProcessComm,
        parts: Parts,
        device: torch.device,
        live: LiveRecord | None,
    ) -> None:
        self._assignment, self._comm, self._parts, self._device = assignment, comm, parts, device
        self._live = live
        self.stop_signal, self.has_started, self.is_complete = 0, False, False

    def watch(self) -> list[Ended]:
        """A user's exception is a worker's failure, with its traceback before the last line: there is no log."""
        try:
            with children_leave():
                status = work(self._assignment, self._parts, self._comm, self._device, self._note_start)
            self.is_complete = status != "interrupted"
        except Exception as error:
            if isinstance(error, StoreGoneError):
                raise _lost_worker_0(self._comm.rank, f"{error}; {what_is_saved(self._assignment)}") from None
            if speaks_for_itself(error):
                raise
            details = [traceback_of(error)]
            message = f"worker {self._comm.rank} failed: {named(error)}; {what_is_saved(self._assignment)}"
            raise WorkerFailedError(message, WORKER_FAILED, details) from error
        self.kill()
        self._comm.close()
        return []

    def _note_start(self) -> None:
        self.has_started = True

    def stop(self, number: int) -> None:
        self.stop_signal = number
        self._comm.key_values.request_stop()

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        self.stop(number)

    def kill(self) -> None:
        """Stops watching. The process ends by itself."""
        if self._live is not None:
            self._live.close()
            self._live = None
