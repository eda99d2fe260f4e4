"""Starts the workers of a run. Each launcher has one file. See base.py."""

from ..fabrics.kinds import FabricKind, Started, VirtualCluster
from .launcher import Launcher
from .local import Local
from .torchrun import Torchrun
from .virtual import Virtual


def launcher_on(fabric: FabricKind) -> Launcher:
    """Returns the launcher that starts workers on the fabric."""
    if isinstance(fabric, VirtualCluster):
        return Virtual(fabric)
    return Torchrun(fabric) if isinstance(fabric, Started) else Local(fabric)
