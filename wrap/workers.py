"""Finds the processes that take part: those that torchrun, or `paceline launch`, started; or this one alone."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..comm import Comm
from ..comm.connecting import connect, connect_env
from ..comm.rendezvous import job_of_torchrun, serve_store
from ..conf.errors import ConfigError
from ..engine.base.parent_death import die_with_parent
from ..engine.base.started import may_be_left_over, place, was_started
from ..engine.config.experiment import Experiment
from ..engine.fabrics import fabric_of
from ..engine.fabrics.layout import RunLayout
from ..strategies.core.mesh import Mesh


@dataclass(frozen=True)
class Joined:
    """`leave`: what ends it."""

    comm: Comm
    layout: RunLayout
    device: torch.device
    leave: Callable[[], None]


_wrapping: list[int] = []  # processes that launched workers' runs began in


def _check_first() -> None:
    """Raises `ConfigError` where this launched worker has wrapped a run before: workers meet once."""
    if os.getpid() in _wrapping:
        raise ConfigError(
            "wrap: this script has wrapped a run before, and launched workers meet for one run. Start a launch for "
            "each run, with the seed as an argument, or choose python SCRIPT: one worker may wrap several."
        )
    _wrapping.append(os.getpid())


def join(experiment: Experiment) -> Joined:
    """Meet the others."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(signal.SIGKILL)  # an agent that is killed would leave its worker alive
    job_of_torchrun()  # before the token is taken out of the environment
    rank, world = place() if was_started() else (0, 1)
    layout = RunLayout(Mesh({"replica": world}), servers=0, loss_part=0)
    fabric = fabric_of(experiment)
    device = fabric.device_of(experiment, layout, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = experiment.hardware.timeout
    if was_started():
        _check_first()
        with may_be_left_over():
            comm = connect_env(timeout, device)
        return Joined(comm, layout, device, comm.close)
    store = serve_store(0)
    comm = connect(store.endpoint, 0, 1, timeout, device)

    def close() -> None:
        comm.close()
        store.close()

    return Joined(comm, layout, device, close)
