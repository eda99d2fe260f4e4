"""Refuses a model that uses a block's parameters outside of the block's forward pass, which alone has them whole."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ...compat.dispatch import TorchDispatchMode, tree_leaves
from ...conf.errors import ConfigError


class OwnForwards(TorchDispatchMode):
    """A context for a forward pass through `model`. Raises `ConfigError` at its end."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._away = {id(each): block for block in blocks for each in block.parameters()}
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
            block = self._away.get(id(each))
            if block is not None and block not in self._running:
                self._found = self._found or self._names[id(each)]
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        for each in self._hooks:
            each.remove()
        if error is None and self._found:
            raise ConfigError(
                f"the model uses its parameter {self._found} outside of the forward pass of the layer that has it, "
                "and FSDP2 gathers a layer's parameters for that pass alone. Choose strategy=data_parallel, or let the "
                "layer's own forward use them.",
                about=("strategy",),
            )
