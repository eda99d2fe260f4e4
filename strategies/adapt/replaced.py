"""Layers that `adapt` puts in the place of a model's own, and the check that a model only calls them.

A forward that reads the weight of such a layer itself, or calls the former layer by a reference, computes without the
factors or with weights of full precision: it trains another function than the one that is evaluated and saved.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ...compat.storages import storage_key
from ..core.own_forwards import OwnForwards


class Replaced(nn.Module):
    """A layer that an adaptation puts in the place of one of the model's. It computes with other numbers than its
    weight, so that a model must call it, and use its weight in no other way (`only_called`).
    """


class _OnlyCalled(OwnForwards):
    """Watches the weights of `Replaced` layers. Their biases are the model's own, and a tensor like a weight is none of
    its numbers.
    """

    def __init__(self, part: nn.Module, layers: Sequence[Replaced]) -> None:
        why = "and adapt has put another layer in the place of that one. Leave it out, choose adapt=none"
        super().__init__(part, layers, why, "adapt", storage_key)
        for layer in layers:
            if isinstance(bias := getattr(layer, "bias", None), Tensor):
                self._away.pop(storage_key(bias), None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.partition(".")[0]
        if name.startswith("new_") or name.endswith("_like"):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def only_called(part: nn.Module) -> AbstractContextManager[object]:
    """Returns a context for a forward pass through `part`, which raises `ConfigError` at its end where the weights of
    `Replaced` layers were used in another way.
    """
    layers = [each for each in part.modules() if isinstance(each, Replaced)]
    return _OnlyCalled(part, layers) if layers else nullcontext()
