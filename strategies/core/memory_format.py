"""The order of a tensor's elements in memory: row by row, channels_last, the columns of a transposed matrix.

torch's fused optimizers go through the memory of a parameter, of its gradient and of its state as if all had one
format. So whatever makes a gradient or reads a state gives it that of the parameter.
"""

import torch
from torch import Tensor
from torch.optim import Optimizer


def is_dense(tensor: Tensor) -> bool:
    """Returns whether the elements fill one run of memory, in any order."""
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)


def laid_out(values: Tensor, like: Tensor) -> Tensor:
    """Returns `values` in the memory format of `like`, which has the same shape; a sparse tensor as it is."""
    if values.layout is not torch.strided or values.stride() == like.stride():
        return values
    return torch.empty_like(like, dtype=values.dtype, device=values.device).copy_(values).detach()


def keep_layout(optimizer: Optimizer) -> None:
    """Has state that the optimizer loads take the memory format of its parameters: files have tensors row by row."""

    def after(_: Optimizer) -> None:
        for parameter, its in optimizer.state.items():  # it may have others, under keys of its own
            for key, value in its.items() if isinstance(parameter, Tensor) and isinstance(its, dict) else ():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    its[key] = laid_out(value, parameter)

    optimizer.register_load_state_dict_post_hook(after)
