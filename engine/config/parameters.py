"""Counts the parameters of a model that compute a token, on the meta device: nothing is allocated."""

from torch import nn

from ...conf.errors import ConfigError
from ...tasks.base import Data
from ...tasks.models.mixture import idle_entries
from .experiment import Experiment
from .looking import on_meta
from .targets import build


def count(experiment: Experiment, allowed: tuple[str, ...] = ()) -> int:
    """Raises `ConfigError`, also for data that are not rows of tokens, and what the model and the data refuse."""
    data = build("data", experiment.data, Data, allowed, {})
    if data.spec.input_dtype.is_floating_point or data.spec.target_shape != data.spec.input_shape:
        raise ConfigError(
            f"data={experiment.data.name}: has no tokens, and flops are counted for a parameter and token of a "
            "transformer. Choose one, such as model=gpt_1b data=text."
        )
    model, _ = on_meta(lambda: build("model", experiment.model, nn.Module, allowed, {"spec": data.spec}))
    return sum(parameter.numel() for parameter in model.parameters()) - idle_entries(model)
