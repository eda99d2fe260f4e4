"""A run whose model becomes another one in mid-run: which strategies and modes that goes with; its phases.

Each phase has parts of its own (build.py), and is trained as a run that begins with the weights which the one before
left: the strategy, the sync mode, its compressors and the optimizer are new. What counts steps for the
whole run (the data's order, the schedule, random numbers, evaluations) goes on.
"""

from dataclasses import replace
from pathlib import Path

from ...conf.errors import ConfigError
from ...strategies.core.terms import NO_SERVERS, ONE_MODEL_AT_A_TIME, TOGETHER, Need
from ..base import checkpoint
from ..config.experiment import Experiment
from .feature import Chosen, Feature, Parts
from .models import ModelFeature, of_model, trainings


def following(features: tuple[Feature, ...]) -> tuple[Feature, ...] | None:
    """Returns the features of the next phase; None where there is none."""
    if not any(isinstance(each, ModelFeature) and each.following for each in features):
        return None
    return tuple(each.following or each if isinstance(each, ModelFeature) else each for each in features)


def check(chosen: Chosen, features: tuple[Feature, ...]) -> None:
    """Raises `ConfigError` where the model cannot become another one in mid-run."""
    changing = [each for each in features if isinstance(each, ModelFeature) and each.following is not None]
    if not changing:
        return
    experiment = chosen.experiment
    if len(changing) > 1:
        names = " and ".join(f"{each.key}={experiment.choice(each.key).name}" for each in changing)
        raise ConfigError(f"{names}: each makes the model another one in mid-run, and one may. Leave one out")
    [feature] = changing
    if trainings(features) > 1:
        raise ConfigError(
            f"{feature.key}={experiment.choice(feature.key).name}: makes the model another one in mid-run, and this "
            f"run trains {trainings(features)} times. Choose {feature.key}=none, or what trains once."
        )


def needs(features: tuple[Feature, ...], experiment: Experiment) -> list[tuple[str, Need]]:
    """Returns what a model that becomes another one in mid-run needs, with the group of the choice that makes it so."""
    found: list[tuple[str, Need]] = []
    for feature in features:
        if isinstance(feature, ModelFeature) and feature.following is not None:
            another = "makes the model another one in mid-run, before one step on all workers"
            key, instead = feature.switch(experiment), f"{feature.key}=none"
            terms = ONE_MODEL_AT_A_TIME, TOGETHER, NO_SERVERS
            found += [(feature.key, Need(term, another, key, instead)) for term in terms]
    return found


def ends_of(parts: Parts, steps_per_epoch: int | None) -> int | None:
    """Returns the step before which the phase of these parts is over; None where the data must say.

    Raises `ConfigError` where the run is too short.
    """
    steps = parts.experiment.steps_in_all(steps_per_epoch)
    if steps is None:
        return None
    if parts.following is None:
        return steps * trainings(parts.features)
    [feature] = [each for each in of_model(parts) if each.following is not None]
    return None if steps_per_epoch is None else feature.lasts(steps, steps_per_epoch)


def phase_saved(parts: Parts, saved: Path, number: int) -> Parts:
    """Returns the parts of the phase that the checkpoint `saved` is of. Raises `CorruptCheckpointError`."""
    count, last = 1, parts
    while last.following is not None:
        count, last = count + 1, last.following
    if not 0 <= number < count:
        raise checkpoint.corrupt(saved, checkpoint.MANIFEST, f"has phase={number}, and the run has {count}, from 0 on")
    return phase_of(parts, number)


def phase_of(parts: Parts, number: int) -> Parts:
    """Returns the parts of a phase for one worker, which has its own objects. 0: the first, which is `parts` itself."""
    for _ in range(number):
        assert parts.following is not None, "the run has no such phase"
        parts = parts.following
    if number == 0:
        return parts
    strategy, sync = parts.make_pair()
    return replace(parts, strategy=strategy, sync=sync)
