"""The virtual cluster: one process on this host, in which all workers live (comm/virtual.py)."""

import gc
import json
from collections.abc import Callable
from dataclasses import replace

import torch

from ...comm import Comm
from ...comm.carriers import Greenlets, Threads
from ...comm.handshake import Endpoint
from ...comm.virtual import SimulatedCluster
from ...comm.virtual_state import Watch
from ...tracking.run_directory import write_atomically
from ..config.experiment import Hardware, VirtualHardware
from ..fabrics.assignment import Assignment
from ..fabrics.kinds import VirtualCluster
from ..fabrics.layout import RunLayout
from ..features.feature import Parts
from ..features.watching import Watcher
from ..training.live_metrics import Teller
from ..training.work import work
from .launcher import Handle, Launcher
from .local import start_processes
from .worker_process import stop_on_sigterm


class Virtual(Launcher):
    _cluster: SimulatedCluster | None = None

    def start(self, assignment: Assignment, layout: RunLayout, survives: bool, preload: tuple[str, ...]) -> Handle:
        return start_processes(self, 1, assignment, layout, lambda ended, store: False, preload)

    def process_of(self, rank: int) -> int:
        return 0

    def work(
        self,
        rank: int,
        store: Endpoint,
        assignment: Assignment,
        parts: Parts,
        device: torch.device,
        started: Callable[[], None],
    ) -> None:
        watcher = None if assignment.samples is None else Watcher(parts.layout)
        watch = None if watcher is None else watcher.see
        self._cluster = cluster_of(parts, assignment.experiment.hardware, watch)
        parts = parts if watcher is None else watcher.watched(parts)
        stop_on_sigterm(self._cluster.request_stop)
        teller = Teller(store, self._cluster.live_metrics)
        run(assignment, parts, self._cluster, kept_from_collector(self._cluster.size, started))
        teller.close()
        if watcher is not None and assignment.samples is not None:
            write_atomically(assignment.samples, json.dumps(watcher.told(), separators=(",", ":")))

    def failed_rank(self) -> int | None:
        return self._cluster.failed_rank if self._cluster is not None else None


def kept_from_collector(workers: int, started: Callable[[], None]) -> Callable[[], None]:
    """Returns `started`, to be called by each worker. Python's garbage collector waits for the last call, and leaves
    alone all that was set up by then: it would go through it again and again. The process ends with the run.
    """
    left = workers
    gc.disable()

    def told() -> None:
        nonlocal left
        started()
        left -= 1
        if left == 0:
            gc.collect()
            gc.freeze()
            gc.enable()

    return told


def cluster_of(parts: Parts, hardware: Hardware, watch: Watch | None = None) -> SimulatedCluster:
    """The workers of the virtual cluster that `hardware` describes. `watch`: see `SimulatedCluster`."""
    assert isinstance(hardware, VirtualHardware)
    waits = parts.strategy.traits.waits_in_passes or parts.sync.traits.waits_in_passes
    network = replace(VirtualCluster().network(hardware), workers=parts.layout.workers)  # the others are servers
    carrier = Threads if waits else Greenlets
    cluster = SimulatedCluster(parts.layout.world_size, network, hardware.memory_bandwidth, watch, carrier)
    cluster.fabric.links.plan(parts.failures.on_links(cluster.fabric))
    return cluster


def run(
    assignment: Assignment, parts: Parts, cluster: SimulatedCluster, started: Callable[[], None] = lambda: None
) -> None:
    """All workers of the cluster, to the end. Raises what the first to fail raised."""

    def work_as_one(comm: Comm) -> None:
        strategy, sync = parts.make_pair()
        work(assignment, replace(parts, strategy=strategy, sync=sync), comm, torch.device("cpu"), started)

    cluster.run(work_as_one)
