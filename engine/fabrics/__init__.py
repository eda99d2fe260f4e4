"""What the fabric of a run is, and so what can be said of the run before anything starts: whether its times are those
of a model, whether it keeps checkpoints, which device and which links its workers have.

engine/launch/ starts the workers on it.
"""

from typing import TYPE_CHECKING

from ..base.started import was_started
from ..config.experiment import Experiment

if TYPE_CHECKING:
    from .kinds import FabricKind


def fabric_of(experiment: Experiment) -> "FabricKind":
    """That which `hardware` names; of processes, those that are there already, or ours."""
    from .kinds import Started, ThisHost, VirtualCluster  # which ask for torch

    if experiment.hardware.fabric == "virtual":
        return VirtualCluster()
    return Started() if was_started() else ThisHost()
