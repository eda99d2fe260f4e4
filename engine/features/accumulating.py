"""Applies `accumulate` to a strategy: decides who splits a replica's batch, and which choices are refused by name."""

from collections import Counter
from typing import Self

from torch import nn

from ...conf.errors import ConfigError
from ...strategies import Strategy
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.loss import Loss
from ...strategies.core.protocols import accumulated_by
from ..config.experiment import Choice, Experiment
from .feature import Chosen, Context, Feature, Hooks, Known


class Accumulated(Feature):
    """A replica's batch is taken in micro-batches (strategies/core/accumulation.py)."""

    key = "accumulate"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return cls() if chosen.experiment.accumulate > 1 else None

    def hooks(self, context: Context) -> Hooks:
        return Weighing(context.parts.accumulation)

    def notes(self, known: Known) -> list[str]:
        return notes_on(known.parts.experiment, known.parts.model)


class Weighing(Hooks):
    """Weighs the loss of each micro-batch by its samples."""

    def __init__(self, accumulation: Accumulation) -> None:
        self._accumulation = accumulation

    def loss(self, plain: Loss) -> Loss:
        return self._accumulation.weighing(plain)


def of(experiment: Experiment, strategy: Strategy) -> tuple[Choice, Accumulation]:
    """The choice of strategy that is to be built, and what our loop is to cut: of one of them it is nothing.

    Raises `ConfigError`.
    """
    chosen, k = experiment.strategy, experiment.accumulate
    if k == 1:
        return chosen, Accumulation()
    if k > experiment.batch_size:
        raise ConfigError(
            f"accumulate={k}: a replica's batch has batch_size={experiment.batch_size} samples, and cannot be cut into "
            f"more micro-batches. Choose accumulate <= {experiment.batch_size}, or a larger batch_size."
        )
    if strategy.traits.across_replicas:
        raise ConfigError(
            f"accumulate={k}: {strategy.traits.across_replicas} makes the batch norm of all replicas' batches that of "
            "one worker, which the batch norm of micro-batches is not. Leave it out, or choose accumulate=1."
        )
    knob = strategy.traits.own_micro_batches
    if not knob:
        return chosen, Accumulation(k)
    own = accumulated_by(strategy)
    if own == 0:
        raise ConfigError(
            f"accumulate={k}: strategy={chosen.name} cuts a batch into micro-batches itself, and works on several at "
            f"once. Choose strategy.{knob}={k} in its place, or strategy=data_parallel."
        )
    if own != 1:
        raise ConfigError(
            f"accumulate={k}, strategy.{knob}={own}: are two names of how many micro-batches "
            f"strategy={chosen.name} accumulates gradients over; leave one of them out"
        )
    return chosen.model_copy(update={"knobs": {**chosen.knobs, knob: k}}), Accumulation()


def in_words(experiment: Experiment) -> str:
    """`accumulate=5: micro-batches of 2 x 7 and 3 x 6 samples, ...`; "" where a batch stays whole."""
    if (k := experiment.accumulate) == 1:
        return ""
    sizes = Counter(Accumulation(k).sizes(experiment.batch_size))
    told = " and ".join(f"{count:,} x {size:,}" for size, count in sizes.items())
    return f"accumulate={k}: micro-batches of {told} samples, one after another, and one update for all"


def notes_on(experiment: Experiment, model: nn.Module) -> list[str]:
    norms = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
    if not any(isinstance(each, norms) for each in model.modules()):
        return []
    return [
        f"accumulate={experiment.accumulate}: model={experiment.model.name} has batch norm, which is over a "
        "micro-batch; it is not trained as it would be on the whole batch"
    ]
