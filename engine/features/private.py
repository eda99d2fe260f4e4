"""Applies `privacy` to a run: its checks, the noise for a given epsilon, and the epsilon that is spent."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ...conf.errors import ConfigError
from ...exchange.privacy import DPSGD, Budget, Privacy
from ...exchange.privacy.accountant import delta_of, epsilon_as_dealt, epsilon_of, noise_for
from ...strategies import Strategy, Sync
from ...strategies.core.protocols import privacy_of
from ...strategies.sync.fedavg import FedAvg
from ...tasks.base import DataSpec
from ...tasks.partition import Partitioner, Shuffled
from ...tasks.poisson import Poisson
from ..config.experiment import Experiment
from ..fabrics.layout import RunLayout
from .feature import Chosen, Context, Feature, Hooks, Known, Parts
from .models import ModelFeature, of_model

MUCH = 1e-3  # a delta above it is a guarantee that fails too often


@dataclass(frozen=True)
class Spent:
    """`epsilon`: had batches, or clients, been drawn; `epsilon_as_dealt`: as they are dealt, which is the same where
    they are drawn, and where all take part in every release. None: without bounds.
    """

    of: str
    units: int
    noise: float
    delta: float
    epsilon: float | None
    epsilon_as_dealt: float | None

    def in_words(self) -> str:
        hides = f"hides each {self.of} of {self.units:,}"
        if self.epsilon is None:
            return f"{hides} not at all, as there is no noise"
        spent = f"{hides}: epsilon {self.epsilon:.3g} at delta {self.delta:.2g} with noise {self.noise:.4g}"
        dealing = "as batches are dealt" if self.of == "sample" else "whoever takes part"
        if self.epsilon_as_dealt == self.epsilon:
            return f"{spent}, {dealing}"
        dealt = "without bounds" if self.epsilon_as_dealt is None else f"{self.epsilon_as_dealt:.3g}"
        drawn = "batches were drawn (partition=poisson)" if self.of == "sample" else "each took part by chance"
        return f"{spent}, if {drawn}; {dealt} {dealing}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Private(Feature):
    """Updates hide each sample, or client, and batches may be drawn."""

    key = "privacy"
    unpredicted = "computes gradients of single samples, or draws noise, which is not modelled"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return cls() if privacy_of(chosen.sync) is not None or chosen.partitioner.draws else None

    def check(self, chosen: Chosen) -> None:
        check(chosen.experiment, chosen.strategy, chosen.sync, chosen.partitioner, chosen.data.spec)

    def check_parts(self, parts: Parts) -> None:
        if privacy_of(parts.sync) is not None:
            for each in of_model(parts):
                _check_one_model(parts.experiment, each)

    def resolved(self, chosen: Chosen) -> Experiment | None:
        return resolved(chosen.experiment, chosen.sync, chosen.data.spec, chosen.partitioner, chosen.layout)

    def stated(self, known: Known) -> Spent | None:
        parts = known.parts
        told = known.samples, known.steps_per_epoch
        return planned(parts.experiment, parts.sync, parts.partitioner, parts.layout, *told)

    def notes(self, known: Known) -> list[str]:
        parts = known.parts
        return notes_on(self.stated(known), parts.experiment, privacy_of(parts.sync), parts.partitioner)

    def hooks(self, context: Context) -> Hooks:
        return Spending(context.parts)


class Spending(Hooks):
    """Tells what privacy was spent."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def summary(self, done: int) -> Mapping[str, float]:
        return spent(self._parts.experiment, self._parts, done)


def of_gradients(sync: Sync) -> DPSGD | None:
    """Returns the privacy of gradients, for a strategy."""
    privacy = privacy_of(sync)
    return privacy if isinstance(privacy, DPSGD) else None


def check(experiment: Experiment, strategy: Strategy, sync: Sync, partitioner: Partitioner, spec: DataSpec) -> None:
    """Raises `ConfigError`."""
    privacy = privacy_of(sync)
    if partitioner.draws and (privacy is None or privacy.of != "sample"):
        raise ConfigError(
            f"partition={experiment.partition.name}: draws batches of no fixed size, sums over which privacy=dp_sgd "
            "divides by the size that is expected, where all else takes the mean of a batch. Choose privacy=dp_sgd "
            "with a privacy.clip, or partition=shuffled."
        )
    if privacy is None:
        return
    chosen = f"privacy={experiment.choice('privacy').name}"
    if privacy.of != "sample":
        return
    if spec.weights:
        raise ConfigError(
            f"{chosen}: samples of data={experiment.data.name} have weights, which are over the mean of those in a "
            "step, so that one sample changes how much others count. Choose data without weights, or privacy=none."
        )
    if strategy.setting.precision.dtype is not None:
        raise ConfigError(
            f"{chosen}: gradients of single samples are computed in float32 alone. Choose precision=fp32, or "
            "privacy=none."
        )
    if not isinstance(partitioner, Shuffled | Poisson):
        raise ConfigError(
            f"{chosen}: its epsilon is that of batches of all samples, and partition={experiment.partition.name} deals "
            "replicas samples of their own. Choose partition=poisson or shuffled, or sync=fedavg and privacy=dp_fedavg."
        )


def _check_one_model(experiment: Experiment, feature: ModelFeature) -> None:
    """Raises `ConfigError` where the model becomes another one by its weights."""
    if feature.looks_at_weights or feature.trainings > 1 or feature.following is not None:
        raise ConfigError(
            f"privacy={experiment.choice('privacy').name}: {feature.switch(experiment)} makes the model another one by "
            "its weights or in mid-run, or trains it again, which no epsilon of ours counts. "
            f"Choose {feature.key}=none or adapt=lora, or privacy=none."
        )


def resolved(
    experiment: Experiment, sync: Sync, spec: DataSpec, partitioner: Partitioner, layout: RunLayout
) -> Experiment | None:
    """Returns the experiment with the noise that `privacy.epsilon` asks for; None if that is not set.

    Raises `ConfigError` or `MissingToolError`.
    """
    privacy = privacy_of(sync)
    if privacy is None or privacy.epsilon is None:
        return None
    budget = None
    if spec.train_size is not None:
        steps_per_epoch = partitioner.steps_per_epoch(spec.train_size, layout.replicas, experiment.batch_size)
        budget = _budget(experiment, sync, partitioner, layout, spec.train_size, steps_per_epoch)
    if budget is None:
        raise ConfigError(
            f"privacy.epsilon={privacy.epsilon:g}: the noise follows from how many steps are made, which is known once "
            f"data={experiment.data.name} are loaded and dealt; give privacy.noise, and the run says what it spent"
        )
    chosen = experiment.choice("privacy")
    knobs = {**chosen.knobs, "noise": noise_for(privacy, budget), "epsilon": None}
    return experiment.model_copy(update={"privacy": chosen.model_copy(update={"knobs": knobs})})


def planned(
    experiment: Experiment,
    sync: Sync,
    partitioner: Partitioner,
    layout: RunLayout,
    samples: int | None,
    steps_per_epoch: int | None,
) -> Spent | None:
    """Returns the epsilon of the whole run; None if nothing is private, or if it depends on the data.

    Raises `MissingToolError`.
    """
    budget = _budget(experiment, sync, partitioner, layout, samples, steps_per_epoch)
    privacy = privacy_of(sync)
    return None if budget is None or privacy is None else _spent(privacy, budget)


def spent(experiment: Experiment, parts: Parts, done: int) -> dict[str, float]:
    """Returns the epsilon after so many steps, as a summary has it."""
    sync, deal = parts.sync, parts.deal()
    samples, per_epoch = len(parts.load()[0]), deal.steps_per_epoch
    budget = _budget(experiment, sync, parts.partitioner, parts.layout, samples, per_epoch, done)
    privacy = privacy_of(sync)
    if budget is None or privacy is None:
        return {}
    found = _spent(privacy, budget)
    told = {"epsilon": found.epsilon, "epsilon_as_dealt": found.epsilon_as_dealt, "delta": found.delta}
    return {name: value for name, value in told.items() if value is not None}


def notes_on(
    found: Spent | None, experiment: Experiment, privacy: Privacy | None, partitioner: Partitioner
) -> list[str]:
    notes: list[str] = []
    if partitioner.draws:
        notes.append(
            f"partition={experiment.partition.name}: a replica's batch has batch_size={experiment.batch_size} samples "
            "on average, by chance fewer or more; memory is planned for so many: the gradients of no more are held "
            "together, and only the inputs of a larger batch take more"
        )
    if found is None or privacy is None:
        return notes
    if found.noise == 0:
        nothing = "nothing is hidden, as there is no noise; what is too long is shortened all the same"
        return [*notes, f"privacy.noise=0: {nothing}"]
    notes += ["privacy: its noise follows from the run's seed, so that it repeats; who knows the seed can take it off"]
    if experiment.weights is not None:
        notes.append(
            f"weights={experiment.weights}: epsilon counts the steps of this run, and nothing that these weights have "
            f"learnt. Choose weights that were trained on other {found.of}s"
        )
    if found.delta > MUCH:
        why = f"{found.units:,} {found.of}s are few to hide among."
        if privacy.delta is not None:
            why = f"Choose less than 1 / {found.units:,}, the share of one {found.of}; null does."
        notes.append(f"privacy.delta={found.delta:.2g}: with such a chance epsilon does not hold. {why}")
    return notes


def _spent(privacy: Privacy, budget: Budget) -> Spent:
    drawn, dealt = epsilon_of(privacy, budget), epsilon_as_dealt(privacy, budget)
    assert privacy.of is not None
    return Spent(
        privacy.of,
        budget.units,
        privacy.noise,
        delta_of(privacy, budget),
        drawn if math.isfinite(drawn) else None,
        dealt if math.isfinite(dealt) else None,
    )


def _budget(
    experiment: Experiment,
    sync: Sync,
    partitioner: Partitioner,
    layout: RunLayout,
    samples: int | None,
    steps_per_epoch: int | None,
    steps: int | None = None,
) -> Budget | None:
    """`steps`: made; None for all of the run. None where that is not known."""
    privacy = privacy_of(sync)
    if privacy is None or steps_per_epoch is None:
        return None
    made = experiment.steps_in_all(steps_per_epoch) if steps is None else steps
    assert made is not None
    if privacy.of == "client":
        assert isinstance(sync, FedAvg), "it alone takes a privacy of clients"
        rounds = -(-made // (sync.epochs * steps_per_epoch))
        return Budget(layout.replicas, sync.per_round(layout.replicas) / layout.replicas, rounds, rounds)
    if samples is None:
        return None
    rate = min(experiment.batch_size * layout.replicas / samples, 1.0)
    return Budget(samples, rate, made, None if partitioner.draws else -(-made // steps_per_epoch))
