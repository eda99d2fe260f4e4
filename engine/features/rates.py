"""The learning rate over a run: the facts that its schedule gets, its checks, and a line that describes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ...strategies.core.terms import EVERY_RATE, Need
from ...strategies.schedules import Horizon, Rate, Schedule, Unscheduled
from ..base.blame import blaming
from ..config.experiment import Experiment
from . import injected
from .feature import Parts


@dataclass(frozen=True)
class RatePoint:
    """The rate in a step, which are counted from 1 as they are in records; of each of the optimizer's groups."""

    step: int
    lr: list[float]


def rate_of(experiment: Experiment, parts: Parts, steps_per_epoch: int, samples: int) -> Rate:
    """Returns the rate over one training. `samples`: to train on. Raises `ConfigError` if the run is too short for its
    schedule.
    """
    steps = experiment.steps_in_all(steps_per_epoch)
    assert steps is not None
    horizon = Horizon(steps, steps_per_epoch, _of_update(experiment, parts, samples))
    parts.schedule.check(horizon)
    return Rate(parts.schedule, horizon)


def _of_update(experiment: Experiment, parts: Parts, samples: int) -> int:
    """The samples of one update, at most: a batch may be larger than what there is to train on."""
    replicas = parts.layout.replicas // parts.partitioner.copies
    if parts.sync.traits.synchronous and parts.sync.traits.weights_agree:  # all replicas make one update together
        return min(experiment.batch_size * replicas, samples)
    return min(experiment.batch_size, samples if parts.partitioner.owns else -(-samples // replicas))


def needs(experiment: Experiment, schedule: Schedule) -> list[tuple[str, Need]]:
    """Returns what a schedule needs, with its group."""
    if isinstance(schedule, Unscheduled):
        return []
    chosen = f"schedule={experiment.schedule.name}", "schedule=none"
    return [("schedule", Need(EVERY_RATE, "changes the learning rate over the run", *chosen))]


def check(experiment: Experiment, schedule: Schedule, optimizer: Optimizer) -> None:
    """Raises `ConfigError` where there is no rate that a schedule could change."""
    if isinstance(schedule, Unscheduled):
        return
    chosen = f"schedule={experiment.schedule.name}"
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigError(
            f"{chosen}: moves the rate lr of an optimizer, and {type(optimizer).__name__} has none. Choose "
            "optimizer=sgd, adam, adamw, lars, lamb or muon, or schedule=none."
        )


def points_of(rate: Rate, parts: Parts) -> list[RatePoint]:
    """Returns the points that describe the rate; none if it is the optimizer's own in every step."""
    if isinstance(rate.schedule, Unscheduled):
        return []
    optimizer = parts.make_optimizer(parts.modules[0].parameters())
    rates = [float(group["lr"]) for group in optimizer.param_groups if group["params"]]
    with injected.naming(parts.experiment), blaming(f"schedule={parts.experiment.schedule.name}", parts.allowed):
        factors = rate.points()
    return [RatePoint(step + 1, [lr * factor for lr in rates]) for step, factor in factors.items()]


def in_words(points: Sequence[RatePoint]) -> str:
    """`0 in step 1, 0.1 in step 101, 0.05 in step 551, 0 in step 1,000`"""
    return ", ".join(f"{' and '.join(f'{lr:.3g}' for lr in each.lr)} in step {each.step:,}" for each in points)
