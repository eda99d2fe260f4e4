"""A plan of the user's that leaves a layer by columns without one by rows, or the other way round, said by name.

Torch would say of a shape that does not fit, far from the layer that is missing; or nothing, where the shapes do fit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...conf.errors import ConfigError
from .layers import ColumnLinear, RowLinear

_RULE = "between a layer by columns and one by rows all is computed of each piece alone"


@contextmanager
def named(part: nn.Module) -> Iterator[None]:
    """A context for a pass through `part`, partitioned by a plan. Raises `ConfigError` for an unpaired layer."""
    seen = _Seen()
    handles: list[RemovableHandle] = []
    for name, layer in part.named_modules():
        if isinstance(layer, RowLinear):
            handles.append(layer.register_forward_pre_hook(partial(seen.row, name)))
        elif isinstance(layer, ColumnLinear):
            handles.append(layer.register_forward_hook(partial(seen.column, name)))
        elif isinstance(layer, nn.Linear):
            handles.append(layer.register_forward_pre_hook(partial(seen.whole, name)))
    try:
        yield
    except RuntimeError as error:
        if seen.columns:
            raise seen.without_row() from error
        raise
    finally:
        for handle in handles:
            handle.remove()
    if seen.columns:
        raise seen.without_row()


class _Seen:
    """The layers by columns whose pieces no layer by rows has taken yet, and the last whole one since."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self._entered: str | None = None

    def column(self, name: str, layer: nn.Module, inputs: object, output: object) -> None:
        self.columns.append(name)
        self._entered = None

    def whole(self, name: str, layer: nn.Module, inputs: object) -> None:
        self._entered = name

    def row(self, name: str, layer: RowLinear, inputs: tuple[Any, ...]) -> None:
        if not self.columns and isinstance(inputs[0], Tensor) and inputs[0].shape[-1] != layer.weight.shape[1]:
            raise ConfigError(
                f"strategy.plan: {name} is by rows and takes pieces of {layer.weight.shape[1]} inputs, and is given "
                f"all {inputs[0].shape[-1]}, as no layer by columns is before it ({_RULE}); add the linear layer "
                f"before it as column, or leave {name} out"
            )
        self.columns.clear()

    def without_row(self) -> ConfigError:
        last = self.columns[-1]
        after = f"{self._entered}, which comes next," if self._entered else "the linear layer that comes next"
        return ConfigError(
            f"strategy.plan: {last} is by columns, so that each worker has a piece of its outputs, and no layer by "
            f"rows adds the pieces up ({_RULE}); add {after} as row, and linear layers beside {last} as column, or "
            f"leave {last} out"
        )
