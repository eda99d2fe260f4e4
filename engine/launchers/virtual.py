"""The virtual cluster: one process on this host, whose threads are the workers (comm/virtual.py)."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ...comm import Comm
from ...comm.handshake import Endpoint
from ...comm.network import Link, Network
from ...comm.virtual import Cluster
from ..assignment import Assignment
from ..compute import ComputeModel
from ..errors import ConfigError
from ..experiment import Experiment, Hardware, VirtualHardware
from ..gauges import Teller
from ..layout import Layout
from ..parts import Parts
from ..work import work
from ..worker_process import stop_on_sigterm
from . import was_started
from .base import Handle, Launcher
from .local import start_processes


class Virtual(Launcher):
    saves = False
    instead = "a virtual cluster saves nothing, the same command repeats the run"
    modelled = True
    _cluster: Cluster | None = None

    def check(self, experiment: Experiment, resumes: bool) -> None:
        if resumes or experiment.checkpoint.every_steps is not None:
            raise ConfigError(
                "hardware=virtual: a virtual cluster keeps no checkpoints, as the same command repeats the run bit for "
                "bit; leave out --resume and checkpoint.every_steps"
            )
        if was_started():
            raise ConfigError("hardware=virtual: is one process on this host; start it without torchrun")

    def device(self, experiment: Experiment, layout: Layout) -> torch.device:
        return torch.device("cpu")

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...]:
        each = self.workers_per_host(hardware)
        return tuple(rank // each for rank in range(world_size))

    def network(self, hardware: Hardware) -> Network:
        assert isinstance(hardware, VirtualHardware)
        return Network(
            between=Link(**hardware.network.model_dump()),
            inside=Link(**hardware.inside.model_dump()),
            workers_per_host=hardware.workers_per_host,
            hosts_per_rack=hardware.hosts_per_rack,
            oversubscription=hardware.oversubscription,
        )

    def workers_per_host(self, hardware: Hardware) -> int:
        assert isinstance(hardware, VirtualHardware)
        return hardware.workers_per_host

    def compute(self, hardware: Hardware) -> ComputeModel:
        assert isinstance(hardware, VirtualHardware)
        return ComputeModel(hardware.flops, hardware.overhead, hardware.compute == "measured")

    def start(self, assignment: Assignment, layout: Layout, survives: bool, preload: tuple[str, ...]) -> Handle:
        return start_processes(1, assignment, layout, lambda ended, store: False, self.saves, preload)

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
        self._cluster = cluster_of(parts, assignment.experiment.hardware)
        stop_on_sigterm(self._cluster.request_stop)
        teller = Teller(store, self._cluster.gauges)
        run(assignment, parts, self._cluster, started)
        teller.close()

    def failed_rank(self) -> int | None:
        return self._cluster.failed_rank if self._cluster is not None else None


def cluster_of(parts: Parts, hardware: Hardware) -> Cluster:
    """The workers of the virtual cluster that `hardware` describes."""
    assert isinstance(hardware, VirtualHardware)
    return Cluster(parts.layout.world_size, Virtual().network(hardware), hardware.memory_bandwidth)


def run(assignment: Assignment, parts: Parts, cluster: Cluster, started: Callable[[], None] = lambda: None) -> None:
    """All workers of the cluster, to the end. Raises what the first to fail raised."""

    def work_as_one(comm: Comm) -> None:
        strategy, sync = parts.make_pair()
        work(assignment, replace(parts, strategy=strategy, sync=sync), comm, torch.device("cpu"), started)

    cluster.run(work_as_one)
