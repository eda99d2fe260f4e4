"""Refuses a model that uses a block's parameters outside of the block's forward pass, where they are right."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...compat.dispatch import TorchDispatchMode, tree_leaves
from ...conf.errors import ConfigError


class OwnForwards(TorchDispatchMode):
    """A context for a forward pass through `model`. Raises `ConfigError` at its end.

    Args:
        why: what such a use would miss, and what to choose.
        about: the group whose choice needs this.
        key: `id` finds the parameters themselves, and `storage_key` their views, too.
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[nn.Module], why: str, about: str, key: Callable[[Tensor], int] = id
    ) -> None:
        super().__init__()
        self._why, self._about, self._key = why, about, key
        self._names = {key(each): name for name, each in model.named_parameters()}
        self._away = {key(each): block for block in blocks for each in block.parameters()}
        self._running: list[nn.Module] = []
        self._found = ""
        self._hooks = [block.register_forward_pre_hook(self._begin) for block in blocks]
        self._hooks += [block.register_forward_hook(self._end, always_call=True) for block in blocks]

    def _begin(self, block: nn.Module, _: Any) -> None:
        self._running.append(block)

    def _end(self, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for each in tree_leaves((args, kwargs)):
            key = self._key(each) if isinstance(each, Tensor) and each.layout is torch.strided else None
            if key in self._away and self._away[key] not in self._running:
                self._found = self._found or self._names[key]
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        for each in self._hooks:
            each.remove()
        if error is None and self._found:
            raise ConfigError(
                f"the model uses its parameter {self._found} outside of the forward pass of the layer that has it, "
                f"{self._why}, or let the layer's own forward use them.",
                about=(self._about,),
            )
