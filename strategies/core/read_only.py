"""Refuses a model that writes to its parameters in a forward pass, where a strategy or a sync mode drops such writes.

A max-norm constraint, an embedding with `max_norm` and an initialisation from the first batch do so. A strategy that
gathers weights for a pass, or steps with copies of them, trains on from the old values without a word.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from ...compat.dispatch import TorchDispatchMode, written_by
from ...compat.storages import storage_key
from ...conf.errors import ConfigError


class ReadOnlyWeights(TorchDispatchMode):
    """A context for a forward pass. Raises `ConfigError` at its end."""

    def __init__(self, weights: Mapping[str, nn.Parameter], group: str, instead: str) -> None:
        """Takes the parameters that may not be written to, by name.

        Args:
            group: That of the choice that would drop the change.
            instead: The choice that keeps it.
        """
        super().__init__()
        self._weights, self._group, self._instead = weights, group, instead
        self._before = {name: storage_key(each) for name, each in weights.items()}
        self._written: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._written.update(storage_key(each) for each in written_by(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if error is not None:
            return
        for name, each in self._weights.items():
            if storage_key(each) != self._before[name] or self._before[name] in self._written:
                raise ConfigError(
                    f"the model changes its parameter {name} in its forward pass, and this choice would drop the "
                    f"change, as it keeps weights elsewhere. Choose {self._instead}.",
                    about=(self._group,),
                )


def read_only(module: nn.Module, by_strategy: bool, by_sync: bool) -> AbstractContextManager[object]:
    """Returns a context that refuses writes to weights that the strategy, or the sync mode, keeps elsewhere.

    A sync mode keeps trained weights alone.
    """
    if by_strategy:
        return ReadOnlyWeights(dict(module.named_parameters()), "strategy", "strategy=data_parallel")
    if by_sync:
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        return ReadOnlyWeights(trained, "sync", "sync=bsp")
    return nullcontext()
