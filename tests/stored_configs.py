"""An experiment as a run's config.yaml, and read from it."""

import yaml

from paceline.engine.config.experiment import Experiment, from_plain


def to_yaml(experiment: Experiment) -> str:
    """Returns the text of the file."""
    return yaml.safe_dump(experiment.model_dump(), sort_keys=False)


def from_yaml(text: str) -> Experiment:
    """Returns the experiment of the file. Raises `ConfigError`."""
    return from_plain(yaml.safe_load(text))
