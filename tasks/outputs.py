"""Models that return an object, as Hugging Face's do: a dict or a dataclass with `logits`, and with `loss` where the
model was given labels.

A hook hands on one tensor of it, so that strategies, sync modes and meters see a model that returns a tensor.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..batches import Samples
from ..conf.errors import ConfigError


def part_of(outputs: object, name: str) -> Tensor | None:
    """Returns the tensor `name` of a dict or an object, or None where there is none."""
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, Tensor) else None


def hand_on_logits(model: nn.Module) -> None:
    """A call of `model` returns the `logits` of an object. Models whose outputs are known to be tensors stay as they
    are: hooks would hide from strategies that a call is that of the class.
    """
    forward = type(model).forward
    if forward.__module__.startswith(("torch.", "paceline.")) or inspect.signature(forward).return_annotation is Tensor:
        return
    model.register_forward_hook(_logits)


def hand_on_loss(model: nn.Module) -> None:
    """A call of `model` returns its own loss."""
    model.register_forward_hook(_loss)


def loss_and_logits(model: nn.Module, inputs: Samples) -> tuple[Tensor, Tensor]:
    """Returns both of a model, without its hooks. Raises ConfigError."""
    positional, named = ((inputs,), {}) if isinstance(inputs, Tensor) else inputs.arguments
    outputs = model.forward(*positional, **named)
    logits = part_of(outputs, "logits")
    if logits is None:
        raise ConfigError(f"task=model: {_returned(model, outputs)}, which has no `logits` to evaluate.")
    return _loss(model, (), outputs), logits


def _logits(model: nn.Module, inputs: Any, outputs: object) -> Tensor | None:
    return None if isinstance(outputs, Tensor) else part_of(outputs, "logits")


def _loss(model: nn.Module, inputs: Any, outputs: object) -> Tensor:
    """Returns the model's own loss, a tensor []."""
    loss = None if isinstance(outputs, Tensor) else part_of(outputs, "loss")
    if loss is None or loss.numel() != 1 or not loss.is_floating_point():
        found = "" if loss is None else f" with a `loss` of shape {list(loss.shape)} and {loss.dtype}"
        raise ConfigError(
            f"task=model: {_returned(model, outputs)}{found}; must return a dict or an object with a `loss` of one "
            "number. Choose task=cross_entropy or squared, which take the logits."
        )
    logits = part_of(outputs, "logits")
    if logits is not None and logits.requires_grad and not loss.requires_grad:
        raise ConfigError(
            f"task=model: {_returned(model, outputs)} whose `loss` has no gradient, so that nothing is trained. "
            "Compute it from the logits without detach() and no_grad()."
        )
    return loss.reshape(())


def _returned(model: nn.Module, outputs: object) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__} returns a {type(outputs).__name__}"
