"""The operators of a training step, one by one, as torch calls them: on the meta device, where nothing is computed.

cost/kernels.py says how long each takes on a machine that was measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...compat import checkpointing
from ...compat.dispatch import TorchDispatchMode
from ...compat.flops import flops_of
from ...cost.kernels import VIEW, Kernel

PRODUCTS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
}  # which arguments are multiplied
MAKES_NOTHING = {"empty", "empty_like", "new_empty", "empty_strided", "detach", "_unsafe_view", "alias", "lift_fresh"}
ALIKE = {  # whose table another's is
    "clone": "copy_",
    "_to_copy": "copy_",
    "sub": "add",
    "div": "mul",
    "neg": "mul",
    "div_": "mul_",
    "sub_": "add_",
    "exp_": "exp",
    "log": "exp",
    "tanh": "exp",
    "sigmoid": "exp",
    "stack": "cat",
    "slice_backward": "copy_",
    "select_backward": "copy_",
    "constant_pad_nd": "copy_",
    "gather": "index",
    "index_select": "index",
    "scatter_add_": "embedding_dense_backward",
    "_embedding_bag": "embedding",
    "_embedding_bag_backward": "embedding_dense_backward",
    "_softmax": "_log_softmax",
    "_softmax_backward_data": "_log_softmax_backward_data",
    "upsample_nearest2d_backward": "upsample_nearest2d",
    "amax": "sum",
    "silu": "gelu",
    "silu_backward": "gelu_backward",
}


@dataclass(frozen=True)
class Traced:
    """The operators of a pass, in order."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]

    @property
    def flops(self) -> float:
        return sum(kernel.flops for kernel in (*self.forward, *self.backward))


def trace(forward: Callable[[], Tensor]) -> Traced:
    """Records the operators of a forward pass, and of the backward pass from its end, if there is one."""
    with Recorder() as ahead:
        end = forward()
    with Recorder() as back:
        if end.requires_grad:
            checkpointing.backward(end)
    return Traced(tuple(ahead.kernels), tuple(back.kernels))


def recorded(call: Callable[[], object]) -> tuple[Kernel, ...]:
    with Recorder() as recorder:
        call()
    return tuple(recorder.kernels)


class Recorder(TorchDispatchMode):
    """Notes what is called within. Modes that answer for torch must be entered before it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace != "profiler":  # an optimizer's marks for torch's profiler
            self.kernels.append(kernel_of(func, args, kwargs, out))
        return out


def kernel_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Kernel:
    name = operation.overloadpacket.__name__
    if operation.is_view or name in MAKES_NOTHING:
        return Kernel(VIEW, (1.0,))
    flops = flops_of(operation, args, kwargs, out)
    if name in PRODUCTS:
        one, other = (args[i] for i in PRODUCTS[name])
        sizes = (prod(one.shape[:-2]), one.shape[-2], other.shape[-1], one.shape[-1])
        table = "product_bfloat16" if one.dtype in (torch.bfloat16, torch.float16) else "product"
        return Kernel(table, _floats(sizes), flops)
    if name == "convolution":
        return Kernel(name, _convolved(args[0], args[1], out), flops)
    if name == "convolution_backward":
        table = name if args[-1][0] else "convolution_to_weights"
        return Kernel(table, _convolved(args[1], args[2], args[0]), flops)
    if name.startswith("_scaled_dot_product"):
        back = name.endswith("backward")
        query, key = args[1 if back else 0], args[2 if back else 1]
        sizes = (prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1])
        return Kernel("attention_backward" if back else "attention", _floats(sizes), flops)
    if name in ("clone", "copy_", "_to_copy") and any(
        each.dim() > 1 and not each.is_contiguous() for each in _tensors(args)
    ):
        name = "transposed"
    entries = max((each.numel() for each in [*_tensors(args), *_tensors([out])]), default=1)
    if name == "embedding" or name == "index" or name == "index_select":  # the whole table is not read
        entries = out.numel()
    return Kernel(ALIKE.get(name, name), (float(max(entries, 1)),), flops)


def _convolved(inputs: Tensor, weight: Tensor, outputs: Tensor) -> tuple[float, ...]:
    return _floats((inputs.shape[0], weight.shape[1], weight.shape[0], prod(outputs.shape[2:]), prod(weight.shape[2:])))


def _floats(sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(max(size, 1)) for size in sizes)


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    nested = [value if isinstance(value, list | tuple) else [value] for value in values]
    return [value for group in nested for value in group if isinstance(value, Tensor)]
