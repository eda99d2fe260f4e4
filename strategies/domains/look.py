"""A pass on the meta device that finds the layers and the functions of a model that meet slabs.

Outside of the layers that domains/cut.py knows, element-wise functions are right on slabs. Any other function is
refused by its name, because it would compute something else on each slab.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...conf.errors import ConfigError
from ..core.copies import copied
from .group import ROWS

ELEMENTWISE = {
    *(F.relu, F.relu6, F.gelu, F.silu, F.elu, F.leaky_relu, F.hardtanh, F.hardswish, F.hardsigmoid, F.softplus, F.mish),
    *(F.sigmoid, F.tanh, torch.relu, torch.relu_, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.square),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.clamp, torch.sqrt),
    *(getattr(Tensor, name) for name in ("relu", "relu_", "sigmoid", "tanh", "abs", "exp", "square", "clamp", "sqrt")),
    *(getattr(Tensor, name) for name in ("add", "add_", "sub", "mul", "mul_", "div", "neg", "clone", "contiguous")),
    *(getattr(Tensor, name) for name in ("float", "double", "half", "bfloat16", "to", "type", "detach")),
    *(getattr(Tensor, f"__{i}{name}__") for i in ("", "i", "r") for name in ("add", "sub", "mul")),
    *(Tensor.__truediv__, Tensor.__neg__, Tensor.__pow__),
}
JOIN = {torch.cat, torch.concat}
PERMUTE = {torch.permute, Tensor.permute}
INSTEAD = "strategy=data_parallel takes any module"


@dataclass
class SlabProfile:
    """`met`: the layers that meet slabs, by name, in order, with the rows of input and output. `output`: the shape of
    what the model gives of a sample; `rows`: the dimension of rows in a batch of them, None where they are no slabs.
    """

    met: dict[str, tuple[int, int]] = field(default_factory=dict)
    output: tuple[int, ...] = ()
    rows: int | None = None


def look(model: nn.Module, image: Sequence[int], known: dict[str, bool]) -> SlabProfile:
    """`known`: the layers that something is known of, by name, and whether what they give is slabs, too.

    Raises `ConfigError`.
    """
    tensors = {id(each): each.detach().to("meta") for each in model.buffers()}
    for each in model.parameters():
        tensors[id(each)] = nn.Parameter(each.detach().to("meta"), requires_grad=each.requires_grad)
    copy = copied(model, tensors).train()
    dtype = next((each.dtype for each in copy.parameters() if each.is_floating_point()), torch.float32)
    x = torch.empty(2, *image, dtype=dtype, device="meta")
    watch = _Watch(known)
    for name, layer in copy.named_modules():
        layer.register_forward_pre_hook(watch.enters(name))
        layer.register_forward_hook(watch.leaves(name))
    watch.mark(x, ROWS)
    with watch:
        y = copy(x)
    if isinstance(y, Tensor):  # else the loss refuses it
        watch.found.rows, watch.found.output = watch.rows_of(y), tuple(y.shape[1:])
    return watch.found


class _Watch(TorchFunctionMode):
    """Marks slabs, and what is made of them."""

    def __init__(self, known: dict[str, bool]) -> None:
        super().__init__()
        self.known, self.found = known, SlabProfile()
        self._slabs: dict[int, tuple[Tensor, int]] = {}  # by id; the tensor is kept, so that no other has its id
        self._within: list[str] = []
        self._silent = 0  # within a layer that is known

    def mark(self, x: Tensor, rows: int) -> None:
        self._slabs[id(x)] = x, rows

    def rows_of(self, x: object) -> int | None:
        """The dimension of its rows; None for what is not a slab."""
        return self._slabs[id(x)][1] if id(x) in self._slabs else None

    def enters(self, name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._within.append(f"{name} ({type(layer).__name__})" if name else type(layer).__name__)
            if self._silent or (name in self.known and self.rows_of(inputs[0]) is not None):
                self._silent += 1

        return hook

    def leaves(self, name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._within.pop()
            if not self._silent:
                return
            self._silent -= 1
            if self._silent:
                return
            rows = inputs[0].shape[ROWS], output.shape[ROWS] if self.known[name] else 1
            if self.rows_of(inputs[0]) != ROWS or inputs[0].dim() != 4:
                raise ConfigError(
                    f"{name} takes {list(inputs[0].shape)}, which is no image; {INSTEAD}", about=("strategy",)
                )
            if self.found.met.setdefault(name, rows) != rows:
                raise ConfigError(
                    f"{name} ({type(layer).__name__}) is used at {self.found.met[name][0]} rows and "
                    f"at {rows[0]}; use a layer for each, or {INSTEAD}",
                    about=("strategy",),
                )
            if self.known[name]:
                self.mark(output, ROWS)

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._silent or not tensors_in(result):
            return result
        given = tensors_in((args, kwargs))
        rows = {self.rows_of(each) for each in given} - {None}
        if rows:
            self.mark(result, self._rows_after(func, args, kwargs, given, rows))
        return result

    def _rows_after(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor], found: set[int | None]
    ) -> int:
        """The dimension of rows in what an element-wise function gives. Raises `ConfigError` for another one."""
        rows, *others = (each for each in found if each is not None)
        if others:
            raise self._refused(func, "of slabs whose rows are in different dimensions")
        if func in PERMUTE:
            dims = kwargs.get("dims", args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:])
            return [dim % given[0].dim() for dim in dims].index(rows)
        if func in JOIN:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            if dim % given[0].dim() == rows:
                raise self._refused(func, "along rows")
        elif func not in ELEMENTWISE:
            raise self._refused(func, "which is not known to be element-wise")
        back = next(each.dim() for each in given if self.rows_of(each) is not None) - rows  # counted from the end
        for each in given:
            is_alike = each.dim() < back or each.shape[-back] == 1  # for all rows
            if self.rows_of(each) is None and (each.requires_grad or not is_alike or func in JOIN):
                raise self._refused(func, f"of a slab and of another tensor, {list(each.shape)}")
        return rows

    def _refused(self, func: Any, why: str) -> ConfigError:
        name = getattr(func, "__name__", str(func))
        return ConfigError(
            f"{self._within[-1]} calls {name} {why}, and on slabs that would be another function; "
            f"make it a layer that is known (docs/domain.md), or {INSTEAD}",
            about=("strategy",),
        )


def tensors_in(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return [each for one in value for each in tensors_in(one)] if isinstance(value, list | tuple) else []
