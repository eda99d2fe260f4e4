"""A run whose model becomes another one in mid-run, by `adapt`: which strategies and modes that goes with; its phases.

Each phase has parts of its own (build.py), and is trained as a run that begins with the weights which the one before
left: the strategy, the sync mode, its compressors and the optimizer are new. What counts steps for the
whole run (the data's order, the schedule, random numbers, evaluations) goes on.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ...strategies import Strategy, Sync
from ...strategies.adapt import Adapt
from ..base.errors import ConfigError
from ..config.experiment import Experiment

if TYPE_CHECKING:
    from .parts import Parts


def check(experiment: Experiment, adapt: Adapt, strategy: Strategy, sync: Sync) -> None:
    """Raises `ConfigError`."""
    if adapt.following is None:
        return
    assert adapt.trainings == adapt.following.trainings == 1, "a way has several trainings, or one that follows it"
    chosen = f"adapt={experiment.choice('adapt').name}: makes the model another one in mid-run"
    if strategy.traits.needs_processes:
        raise ConfigError(
            f"{chosen}, and the library that strategy={experiment.strategy.name} hands it to is set up for one model; "
            "strategy=data_parallel, pipeline, hybrid or single goes with it"
        )
    if not sync.traits.synchronous or sync.servers:
        why = "has servers, which are set up for one model" if sync.servers else "lets each replica do so at its pace"
        raise ConfigError(
            f"{chosen}, before one step on all workers, and sync={experiment.sync.name} {why}; choose a mode in which "
            "replicas step together without servers, such as sync=bsp or sync=local_sgd"
        )


def ends_of(experiment: Experiment, parts: "Parts", steps_per_epoch: int | None) -> int | None:
    """The step before which the phase of these parts is over; None where the data must say.

    Raises `LayoutError` where the run is too short.
    """
    steps = experiment.steps_in_all(steps_per_epoch)
    if steps is None:
        return None
    if parts.following is None:
        return steps * parts.adapt.trainings
    return None if steps_per_epoch is None else parts.adapt.lasts(steps, steps_per_epoch)


def phase_of(parts: "Parts", number: int) -> "Parts":
    """For one worker, whose own objects they then have. 0: the first, which is `parts` itself."""
    for _ in range(number):
        assert parts.following is not None, "a checkpoint's phase is one of the run's"
        parts = parts.following
    if number == 0:
        return parts
    strategy, sync = parts.make_pair()
    return replace(parts, strategy=strategy, sync=sync)
