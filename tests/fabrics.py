"""Where a function runs as several workers: `FABRICS[name](size, function, *arguments)` returns what each returned."""

import copy
from collections.abc import Callable
from typing import Any

from worker_processes import run_workers

from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster
from paceline.strategies.core.state import from_bytes, to_bytes

NETWORK = Network(between=NetworkLink(latency=1e-5, bandwidth=1e9), inside=NetworkLink(latency=1e-6, bandwidth=1e10))


def run_virtual(size: int, function: Callable[..., Any], *arguments: Any, **_: Any) -> list[Any]:
    """`run_workers` on the virtual cluster; each worker gets a copy of the arguments, as a process does."""
    own = [copy.deepcopy(arguments) for _ in range(size)]
    return [
        from_bytes(to_bytes({"result": result}))["result"]
        for result in SimulatedCluster(size, NETWORK).run(lambda comm: function(comm, *own[comm.rank]))
    ]


FABRICS: dict[str, Callable[..., list[Any]]] = {"process": run_workers, "virtual": run_virtual}
