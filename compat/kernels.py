"""torch's operators that only its own functions call: to be timed by themselves."""

import torch
from torch import Tensor

_aten = torch.ops.aten


def attention(query: Tensor) -> tuple[Tensor, Tensor]:
    """Computes causal attention on the CPU with a query that is key and value too. Returns the output, and what
    backward needs.
    """
    return _aten._scaled_dot_product_flash_attention_for_cpu(query, query, query, 0.0, True)


def attention_backward(gradient: Tensor, query: Tensor, out: Tensor, sums: Tensor) -> object:
    """`out`, `sums`: as `attention` gave them."""
    backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(gradient, query, query, query, out, sums, 0.0, True)


def log_softmax(x: Tensor) -> Tensor:
    return _aten._log_softmax(x, 1, False)


def log_softmax_backward(gradient: Tensor, out: Tensor) -> Tensor:
    return _aten._log_softmax_backward_data(gradient, out, 1, out.dtype)
