"""The fabrics: processes that we start on this host, that are there already, or that a scheduler starts; a virtual
cluster.
"""

import os
from dataclasses import replace
from math import ceil

import torch

from ...comm.network import Network, NetworkLink
from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ..base.started import UNSET, is_submitted, place, was_started
from ..config.experiment import Experiment, Hardware, LinkModel, Machine, VirtualHardware
from .compute import ComputeModel
from .layout import RunLayout


class FabricKind:
    """`saves`: workers keep checkpoints, from which a run that was stopped goes on; else `instead` says how to have it
    again. `modelled`: times are those of a model. `world_size`: the processes that are there already; None where they
    are yet to be started. `submits`: a scheduler starts the processes, and this one trains nothing.
    """

    saves: bool = True
    instead: str = ""
    modelled: bool = False
    world_size: int | None = None
    submits: bool = False

    def check(self, experiment: Experiment, resumes: bool) -> None:
        """Refuse what cannot be launched. Raises `ConfigError`."""

    def processes_here(self, layout: RunLayout) -> int:
        """The number of workers and servers on this host."""
        return layout.world_size

    def workers_here(self, layout: RunLayout) -> int:
        """The number of workers on this host. Servers do not count: they hold weights in the host's memory."""
        return layout.workers

    def device(self, experiment: Experiment, layout: RunLayout) -> torch.device:
        """The workers' device: of the machine that `hardware` describes, else of this host.

        Raises `ConfigError` when CUDA is asked for and this host has fewer GPUs than workers.
        """
        hardware = experiment.hardware
        if (machine := hardware.machine) is not None:
            return torch.device("cuda" if machine.devices and hardware.device != "cpu" else "cpu")
        gpus, workers = torch.cuda.device_count(), self.workers_here(layout)
        if hardware.device == "cuda" and workers and not gpus:
            why = ", as it is built for CPUs" if not torch.backends.cuda.is_built() else ""
            raise ConfigError(
                f"hardware.device=cuda: torch finds no GPU on this host{why}. Choose hardware.device=cpu, or see "
                "paceline doctor."
            )
        if hardware.device == "cuda" and gpus < workers and not self._has_own_gpu(gpus):
            raise ConfigError(
                f"hardware.device=cuda: {self.who_needs_gpus(workers)}, and it has {gpus}. Start at most {gpus} "
                "workers a host, or choose hardware.device=cpu."
            )
        takes = hardware.device == "cuda" or (hardware.device == "auto" and gpus >= max(workers, 1))
        return torch.device("cuda" if takes else "cpu")

    def device_notes(self, experiment: Experiment, layout: RunLayout, device: torch.device) -> list[str]:
        """Says when `hardware.device=auto` leaves GPUs idle."""
        hardware, gpus = experiment.hardware, torch.cuda.device_count()
        workers = self.workers_here(layout)
        if hardware.machine is not None or hardware.device != "auto" or device.type != "cpu" or not gpus or not workers:
            return []
        return [
            f"hardware.device=auto: computes on the CPU. {self.who_needs_gpus(workers)}, and it has {gpus}"
            + (". hardware.device=cuda takes a GPU that only this process sees" if self._has_own_gpu(gpus) else "")
        ]

    def device_of(self, experiment: Experiment, layout: RunLayout, rank: int) -> torch.device:
        """The device of this process, which is worker or server `rank`. A server's is the CPU."""
        device = self.device(experiment, layout)
        if device.type == "cpu" or rank >= layout.workers:
            return torch.device("cpu")
        return torch.device("cuda", self._place(rank) % torch.cuda.device_count())

    def _place(self, rank: int) -> int:
        """The position of worker `rank` among the workers of its host. Servers come after all workers."""
        return rank

    def _has_own_gpu(self, gpus: int) -> bool:
        """Returns True if the launcher may have given this process its own GPU, by CUDA_VISIBLE_DEVICES."""
        return False

    def who_needs_gpus(self, workers: int) -> str:
        return f"This host has {workers} workers, which need a GPU each"

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...] | None:
        """Returns the host of each worker and server, by rank, numbered from 0; None where it is not known here."""
        return None

    def network(self, hardware: Hardware) -> Network | None:
        """The links that `hardware` describes, between any two workers; None where it does not describe them all."""
        return None

    def workers_per_host(self, hardware: Hardware) -> int | None:
        """Returns the number that `hardware` states; None for one on each device, or for all."""
        return None

    def compute(self, hardware: Hardware) -> ComputeModel | None:
        """Returns the model of a step's compute time, if time is modelled."""
        return None

    def tells(self, layout: RunLayout) -> bool:
        """Returns whether this process has the run's directory, and reports to the caller."""
        return True


class ThisHost(FabricKind):
    """Processes that we start here."""

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...]:
        """Returns this host. In a plan for machines with devices, there is one worker on each device."""
        machine = hardware.machine
        each = machine.devices if machine is not None and hardware.device != "cpu" else 0
        return tuple(rank // each if each else 0 for rank in range(world_size))

    def network(self, hardware: Hardware) -> Network | None:
        machine, workers = hardware.machine, hardware.workers or 1
        if machine is None or self.hosts(hardware, workers)[-1] == 0:
            return _network_of_one(machine)
        if machine.network is None:
            return None
        between = _link(machine.network)
        inside = between if machine.link is None else _link(machine.link)
        return Network(between, inside, workers_per_host=machine.devices)


class Started(FabricKind):
    """Processes that torchrun, or another launcher that follows env://, has started. This is one of them."""

    def __init__(self) -> None:
        self.rank, size = place()
        self.world_size = size
        each = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)  # others than torchrun need not say it
        self._local = (int(os.environ.get("LOCAL_RANK") or self.rank % each), each) if each else None

    def check(self, experiment: Experiment, resumes: bool) -> None:
        """The processes of a scheduler's job have its launcher in their configuration; nobody else may name one."""
        launcher, usual = experiment.choice("launcher").name, BY_NAME["launcher"].usual
        if launcher != usual and not is_submitted():
            raise ConfigError(
                f"launcher={launcher}: torchrun has started this process already. Choose launcher={usual}. {UNSET}"
            )

    def processes_here(self, layout: RunLayout) -> int:
        return layout.world_size if self._local is None else self._local[1]

    def workers_here(self, layout: RunLayout) -> int:
        """All workers, where nobody says how many are on this host."""
        if self._local is None:
            return layout.workers
        first = self.rank - self._local[0]
        return len(range(first, min(first + self._local[1], layout.workers)))

    def _place(self, rank: int) -> int:
        return rank if self._local is None else self._local[0]

    def _has_own_gpu(self, gpus: int) -> bool:
        return gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ

    def who_needs_gpus(self, workers: int) -> str:
        if self._local is not None:
            return super().who_needs_gpus(workers)
        return f"LOCAL_WORLD_SIZE is not set, so all {workers} workers count as this host's and need a GPU each"

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...] | None:
        each = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)  # others than torchrun need not say it
        if not each or world_size % each:
            return None
        return tuple(rank // each for rank in range(world_size))

    def network(self, hardware: Hardware) -> Network | None:
        one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        return _network_of_one(hardware.machine) if one_host else None  # the links between hosts are not described

    def tells(self, layout: RunLayout) -> bool:
        return self.rank == layout.chief


class Elsewhere(FabricKind):
    """Processes that a scheduler is to start. This one only plans and submits them: their devices are not here."""

    submits = True

    def __init__(self, nodes: int, workers_per_node: int) -> None:
        self.world_size, self._each = nodes * workers_per_node, workers_per_node

    def processes_here(self, layout: RunLayout) -> int:
        return self._each

    def workers_here(self, layout: RunLayout) -> int:
        return min(self._each, layout.workers)

    def device(self, experiment: Experiment, layout: RunLayout) -> torch.device:
        """CUDA where it is asked for. `auto` is resolved on the nodes, and is planned as the CPU."""
        machine = experiment.hardware.machine
        takes = machine.devices > 0 if machine is not None else experiment.hardware.device == "cuda"
        return torch.device("cuda" if takes and experiment.hardware.device != "cpu" else "cpu")

    def device_notes(self, experiment: Experiment, layout: RunLayout, device: torch.device) -> list[str]:
        return []

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...]:
        return tuple(rank // self._each for rank in range(world_size))


class VirtualCluster(FabricKind):
    """Workers of one process on this host (comm/virtual.py)."""

    saves = False
    instead = "a virtual cluster saves nothing, the same command repeats the run"
    modelled = True

    def check(self, experiment: Experiment, resumes: bool) -> None:
        if resumes or experiment.checkpoint.every_steps is not None:
            raise ConfigError(
                "hardware=virtual: a virtual cluster keeps no checkpoints, as the same command repeats the run bit for "
                "bit; leave out --resume and checkpoint.every_steps"
            )
        if was_started():
            raise ConfigError(f"hardware=virtual: is one process on this host; start it without torchrun. {UNSET}")
        if "nodes" in experiment.choice("launcher").knobs:
            raise ConfigError(
                f"launcher={experiment.choice('launcher').name}: hardware=virtual is one process on this host. Choose "
                "launcher=auto."
            )

    def device(self, experiment: Experiment, layout: RunLayout) -> torch.device:
        return torch.device("cpu")

    def device_notes(self, experiment: Experiment, layout: RunLayout, device: torch.device) -> list[str]:
        return []

    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...]:
        each = self.workers_per_host(hardware)
        return tuple(rank // each for rank in range(world_size))

    def network(self, hardware: Hardware) -> Network:
        assert isinstance(hardware, VirtualHardware)
        between, uplink, per_rack = _link(hardware.network), hardware.uplink, hardware.hosts_per_rack
        if hardware.racks is not None and hardware.workers is not None:
            per_rack = ceil(hardware.workers / hardware.workers_per_host / hardware.racks)
        own = None
        if uplink is not None and uplink.bandwidth is not None:
            own = NetworkLink(uplink.latency, uplink.bandwidth, uplink.upload)
        elif uplink is not None:
            own = replace(between.uplink_of(per_rack or 1, hardware.oversubscription), latency=uplink.latency)
        return Network(
            between=between,
            inside=_link(hardware.inside),
            workers_per_host=hardware.workers_per_host,
            hosts_per_rack=per_rack,
            oversubscription=hardware.oversubscription,
            uplink=own,
            racks=hardware.racks,
            server=None if hardware.server is None else _link(hardware.server),
            workers=hardware.workers,
        )

    def workers_per_host(self, hardware: Hardware) -> int:
        assert isinstance(hardware, VirtualHardware)
        return hardware.workers_per_host

    def compute(self, hardware: Hardware) -> ComputeModel:
        assert isinstance(hardware, VirtualHardware)
        return ComputeModel(hardware.flops, hardware.overhead, hardware.compute == "measured")


def _link(model: LinkModel) -> NetworkLink:
    return NetworkLink(**model.model_dump())


def _network_of_one(machine: Machine | None) -> Network | None:
    """Returns the network between the devices of one host, if it is described."""
    if machine is None or machine.link is None:
        return None
    link = _link(machine.link)
    return Network(between=link, inside=link)
