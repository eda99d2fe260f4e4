"""The fabric of a run, and the facts that follow from it before anything starts: whether its times are modelled,
whether it keeps checkpoints, which device and which links its workers have.

engine/launch/ starts the workers on it.
"""

from typing import TYPE_CHECKING

from ..base.started import was_started
from ..config.experiment import Experiment

if TYPE_CHECKING:
    from .kinds import FabricKind


def fabric_of(experiment: Experiment) -> "FabricKind":
    """Returns the fabric that `hardware` names. For processes it is those that are there already, ours, or those of a
    scheduler's job, whose launcher has the knob `nodes`.
    """
    from .kinds import Elsewhere, Started, ThisHost, VirtualCluster  # which ask for torch

    if experiment.hardware.fabric == "virtual":
        return VirtualCluster()
    if was_started():
        return Started()
    if asked_for(experiment) is None:
        return ThisHost()
    launcher = experiment.choice("launcher").knobs
    return Elsewhere(_count(launcher["nodes"]), launcher["workers_per_node"])


def asked_for(experiment: Experiment) -> int | None:
    """Returns the number of processes that the launcher is to start elsewhere; None of one that starts none."""
    launcher = experiment.choice("launcher").knobs
    return _count(launcher["nodes"]) * launcher["workers_per_node"] if "nodes" in launcher else None


def _count(nodes: int | list[str]) -> int:
    return nodes if isinstance(nodes, int) else len(nodes)
