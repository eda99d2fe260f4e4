"""Measure this machine in as many processes as it has cores, and at least four: beginning, watching, ending them."""

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ...comm.rendezvous import serve_store
from ...compat import fork_server
from ...conf.errors import ConfigError
from ...cost.alpha_beta import fit
from ...cost.calibration import Calibration, Disk, MeasuredOperation
from ...cost.kernels import KernelRates, KernelTable
from ..base.errors import MachineError
from ..base.machine import cores, cpu_model
from ..launch.local_workers import start_fork_server, without_main
from . import worker

LEAST_WORKERS, MOST_WORKERS = 4, 8
DEADLINE = 300.0  # seconds
STARTED_BY = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "RANK", "WORLD_SIZE")


def calibrate(
    quick: bool = False, told: Callable[[str, float], None] = lambda what, share: None
) -> tuple[Calibration, dict[str, Any]]:
    """Returns the calibration, and the measured points. `told` is called with the current measurement and the share
    that is done.

    Raises `ConfigError` where a launcher started this process, `MachineError` when a measuring process failed.
    """
    if by := [name for name in STARTED_BY if name in os.environ]:
        raise ConfigError(
            f"{by[0]}={os.environ[by[0]]}: a launcher started this process, and paceline calibrate measures one "
            "machine, in processes of its own; start it without torchrun or srun, on one machine of each kind"
        )
    usable = cores()
    workers = min(MOST_WORKERS, max(usable, LEAST_WORKERS))
    found = _measured(workers, conditions(usable), quick, told)
    calibration = Calibration(
        date=time.strftime("%Y-%m-%d %H:%M"),
        host=platform.node(),
        cpu=cpu_model(),
        cores=usable,
        versions={
            "paceline": version("paceline"),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        spread=max(found["spreads"]),
        differing=found["differing"] / found["cases"],
        rates=[
            KernelRates(
                each["threads"],
                each["processes"],
                {name: KernelTable(tuple(map(tuple, points))) for name, points in each["tables"].items()},
                each["costs"],
            )
            for each in found["rates"]
        ],
        links=[MeasuredOperation(name, size, fit(points)) for name, size, points in found["links"]],
        disk=Disk(**found["disk"]),
        host_link=found["host_link"],
    )
    return calibration, found


def conditions(cores: int) -> list[tuple[int, int]]:
    """(threads, processes): one process of one thread, then all cores, shared out to more and more processes."""
    counts = sorted({1, 2, 4, cores} & set(range(1, cores + 1)))
    return list(dict.fromkeys([(1, 1), *((cores // processes, processes) for processes in counts)]))


def cores_in_use() -> float:
    """Returns how many cores of this host were busy, over the last minute."""
    return os.getloadavg()[0]


def _measured(
    workers: int, conditions: list[tuple[int, int]], quick: bool, told: Callable[[str, float], None]
) -> dict[str, Any]:
    context = multiprocessing.get_context("forkserver")
    start_fork_server(worker.__name__)
    store = serve_store(0)
    ours, theirs = context.Pipe(duplex=False)
    processes = [
        context.Process(
            target=worker.main, args=(rank, workers, store.endpoint, conditions, quick, theirs), daemon=True
        )
        for rank in range(workers)
    ]
    try:
        with without_main(), fork_server.kept_awake():
            for process in processes:
                process.start()
        theirs.close()
        found = _watched(processes, ours, told)
        for process in processes:
            process.join(worker.TIMEOUT)
        return found
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        store.close()


def _watched(processes: list[Any], channel: Connection, told: Callable[[str, float], None]) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        ready = wait([channel, *(process.sentinel for process in processes)], timeout=1.0)
        if channel in ready:
            try:
                message = json.loads(channel.recv_bytes())
            except EOFError:
                break
            if "found" in message:
                return message["found"]
            told(message["doing"], message["share"])
            continue
        failed = [rank for rank, process in enumerate(processes) if process.exitcode not in (None, 0)]
        if failed:
            raise MachineError(f"a process that measures failed: number {failed[0]}; its traceback is above")
    raise MachineError(f"the machine was not measured within {DEADLINE:.0f} s: is it overloaded?")
