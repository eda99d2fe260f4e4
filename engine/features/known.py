"""Gathers the facts of a run that follow from the number of its samples."""

from .feature import Known, Parts
from .models import trainings


def known_of(parts: Parts, samples: int | None, steps_per_epoch: int | None) -> Known:
    training = parts.experiment.steps_in_all(steps_per_epoch)
    steps = None if training is None else training * trainings(parts.features)
    return Known(parts, samples, steps_per_epoch, training, steps)
