"""The roles of a run: workers at the points of a mesh (strategies/core/mesh.py), then servers.

A replica's workers follow one another. Its *parts* are its workers in that order: worker `replica * parts + part`.
Servers follow: `servers` for each part.
"""

import os
from dataclasses import dataclass
from typing import Literal

from ...conf.errors import ConfigError
from ...strategies import Strategy, Sync
from ...strategies.core.mesh import Mesh
from ...strategies.core.with_servers import SyncWithServers
from ..base.started import UNSET, was_started
from ..config.experiment import Experiment


@dataclass(frozen=True)
class Role:
    kind: Literal["worker", "server"]
    replica: int  # a server's number among the servers of its part
    part: int
    position: tuple[tuple[str, int], ...] = ()  # a worker's, on each axis

    def __str__(self) -> str:
        where = ", ".join(f"{axis} {i}" for axis, i in self.position)
        return f"worker ({where})" if self.kind == "worker" else "server"


@dataclass(frozen=True)
class RunLayout:
    mesh: Mesh  # of the workers; its first axis is "replica"
    servers: int  # for each part
    loss_part: int

    @property
    def workers(self) -> int:
        return self.mesh.size

    @property
    def replicas(self) -> int:
        return self.mesh.axes["replica"]

    @property
    def parts(self) -> int:
        return self.workers // self.replicas

    @property
    def world_size(self) -> int:
        return self.workers + self.servers * self.parts

    @property
    def chief(self) -> int:
        """The worker that evaluates and writes the run directory: it has the loss of replica 0."""
        return self.loss_part

    def role(self, rank: int) -> Role:
        if rank < self.workers:
            return Role("worker", *divmod(rank, self.parts), tuple(self.mesh.position(rank).items()))
        return Role("server", *divmod(rank - self.workers, self.parts))


def check_samples(experiment: Experiment, samples: int | None, layout: RunLayout) -> None:
    """Each replica trains on something. `samples`: of the training split, None where the data must say.

    Raises `ConfigError`.
    """
    if samples is not None and samples < layout.replicas:
        raise ConfigError(
            f"hardware.workers={layout.workers}: makes {layout.replicas} replicas, and data={experiment.data.name} has "
            f"{samples} samples to train on. Choose at most hardware.workers={samples * layout.parts}, or data with "
            "more samples, such as data=fashion_mnist (60,000) or data=tokens (as many as data.samples says)."
        )


def lay_out(experiment: Experiment, strategy: Strategy, sync: Sync, world_size: int | None) -> RunLayout:
    """`world_size`: the processes that torchrun started; None when we start them. Raises `ConfigError`."""
    parts, servers, workers = strategy.parts, sync.servers, experiment.hardware.workers
    if servers and not isinstance(sync, SyncWithServers):
        raise ConfigError(
            f"sync={experiment.sync.name}: has {servers} servers, and {type(sync).__name__} has no code for them. "
            "Derive it from SyncWithServers (strategies/core/with_servers.py)"
        )
    if world_size is not None:
        available = world_size - servers * parts
        if available < 1 or workers not in (None, available):
            key = f"hardware.workers={workers}" if workers is not None else f"sync={experiment.sync.name}"
            if not was_started():
                raise ConfigError(
                    f"{key}: launcher.nodes x launcher.workers_per_node is {world_size} "
                    f"processes, of which {servers * parts} are servers. "
                    + ("Choose more launcher.nodes." if available < 1 else f"Choose hardware.workers={available}.")
                )
            start = f"Start {(workers or parts) + servers * parts}"
            way = f"{start} or more" if workers is None else start
            way += f", or choose hardware.workers={available}" if available > 0 else ""
            raise ConfigError(
                f"{key}: {world_size} processes were started, which with {servers * parts} servers leaves "
                f"{max(available, 0)} workers. {way}. {UNSET}"
            )
        workers = available
    if workers is None:
        workers = parts if parts > 1 else min(2, strategy.traits.max_replicas or 2)
    replicas, rest = divmod(workers, parts)
    name = experiment.strategy.name
    if rest or replicas == 0:
        below, above = replicas * parts, (replicas + 1) * parts
        nearest = f"{below} or {above}" if below else str(above)
        raise ConfigError(
            f"hardware.workers={workers}: strategy={name} lays one replica over {parts} workers, so it must be a "
            f"multiple of {parts}, for instance {nearest}"
        )
    if strategy.traits.max_replicas is not None and replicas > strategy.traits.max_replicas:
        raise ConfigError(
            f"hardware.workers={workers}: strategy={name} takes at most {strategy.traits.max_replicas * parts}; "
            "strategy=data_parallel takes any number"
        )
    return RunLayout(Mesh({"replica": replicas, **strategy.mesh.axes}), servers, strategy.loss_part)


def share_of_cores(processes: int) -> int:
    """Returns this host's cores for each of so many workers and servers on it; one at least."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, processes))
