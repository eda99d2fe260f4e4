"""The fabric of a run, and the facts that follow from it before anything starts: whether its times are modelled,
whether it keeps checkpoints, which device and which links its workers have.

engine/launch/ starts the workers on it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
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
    return Elsewhere(_nodes(launcher["nodes"]), _each(launcher))


def asked_for(experiment: Experiment) -> int | None:
    """Returns the number of processes that the launcher is to start elsewhere; None of one that starts none.

    Raises `ConfigError` where the choice does not say it.
    """
    choice = experiment.choice("launcher")
    if choice.target == BY_NAME["launcher"].base:
        return None
    if "nodes" not in choice.knobs:
        raise ConfigError(
            f"launcher.nodes: is missing, and launcher={choice.name} starts nothing without it. Give +launcher.nodes=1 "
            "and +launcher.workers_per_node=2, or choose launcher=auto."
        )
    return _nodes(choice.knobs["nodes"]) * _each(choice.knobs)


def _nodes(given: object) -> int:
    """Counts hosts by name, or takes a number: the most of LEAST:MOST. The launcher refuses other values by itself."""
    if isinstance(given, int):
        return given
    if isinstance(given, list):
        return len(given)
    most = re.fullmatch(r"\d+:(\d{1,4})", str(given))
    return int(most[1]) if most else 1


def _each(launcher: Mapping[str, object]) -> int:
    """Returns the number of workers on each node. Raises `ConfigError` where the choice does not say it."""
    if "workers_per_node" not in launcher:
        raise ConfigError(
            "launcher.workers_per_node: is missing beside launcher.nodes. Write it into the launcher's YAML, or give "
            "+launcher.workers_per_node=2."
        )
    each = launcher["workers_per_node"]
    return each if isinstance(each, int) else 1
