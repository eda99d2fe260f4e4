"""Which strategies and sync modes compute in which precision, and what scaled losses send."""

from typing import TYPE_CHECKING

from ...exchange.collectives import Fabric
from ...strategies import Strategy, Sync
from ...strategies.core.cost import Traffic, World
from ...strategies.core.loss_scale import FLAG
from ..base.errors import ConfigError
from ..config.experiment import Experiment

if TYPE_CHECKING:
    from .parts import Parts


def check(experiment: Experiment, strategy: Strategy, sync: Sync) -> None:
    """Raises `ConfigError`."""
    precision, chosen = strategy.setting.precision, f"precision={experiment.choice('precision').name}"
    if precision.dtype is None:
        return
    if strategy.traits.one_precision:
        raise ConfigError(f"{chosen}: strategy={experiment.strategy.name}: {strategy.traits.one_precision}")
    if precision.scale() is None or strategy.traits.rounds_weights:
        return
    of_strategy = sync.traits.one_scale if strategy.own_sync() is not None else ""
    if of_strategy:
        raise ConfigError(f"{chosen}: strategy={experiment.strategy.name}: {of_strategy}")
    if sync.traits.one_scale:
        raise ConfigError(f"{chosen}: sync={experiment.sync.name}: {sync.traits.one_scale}")


def flag(parts: "Parts") -> tuple[Traffic, bool]:
    """What a worker sends in a step to agree on leaving it out, and whether to the workers of its replica alone."""
    within = not (parts.sync.traits.steps_together and parts.layout.replicas > 1)
    among = parts.layout.parts if within else parts.layout.workers
    if among == 1 or parts.precision.scale() is None:
        return {}, within
    return Fabric().traffic(FLAG, World(among)), within
