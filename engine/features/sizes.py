"""The number of samples that an evaluation takes at once."""

from .feature import Chosen

AT_ONCE = 512


def evaluated_at_once(chosen: Chosen) -> int:
    """Returns 512; of samples that are many predictions each (text) no more than training takes, whose outputs fit."""
    most = chosen.accumulation.sizes(chosen.experiment.batch_size)[0]
    return min(AT_ONCE, most) if chosen.data.spec.target_shape else AT_ONCE
