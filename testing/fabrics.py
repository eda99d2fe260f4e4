"""Fabrics on which a function runs as several workers: real processes, and the virtual cluster.

`FABRICS[name](size, function, *arguments)` returns what each worker returned, by rank.
"""

import copy
from collections.abc import Callable
from typing import Any

from ..comm.network import Network, NetworkLink
from ..comm.virtual import SimulatedCluster
from ..strategies.core.state import from_bytes, to_bytes
from .processes import run_workers

NETWORK = Network(between=NetworkLink(latency=1e-5, bandwidth=1e9), inside=NetworkLink(latency=1e-6, bandwidth=1e10))


def run_virtual(size: int, function: Callable[..., Any], *arguments: Any, **_: Any) -> list[Any]:
    """Runs the same on the virtual cluster. Each worker gets a copy of the arguments, as a process does."""
    own = [copy.deepcopy(arguments) for _ in range(size)]
    return [
        from_bytes(to_bytes({"result": result}))["result"]
        for result in SimulatedCluster(size, NETWORK).run(lambda comm: function(comm, *own[comm.rank]))
    ]


FABRICS: dict[str, Callable[..., list[Any]]] = {"process": run_workers, "virtual": run_virtual}
