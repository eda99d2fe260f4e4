"""The operations that torch fuses attention into, which work on the meta device too: as there, nothing is computed."""

import torch
from torch import Tensor

_aten = torch.ops.aten


def fused_on_cpu(inputs: tuple[Tensor, Tensor, Tensor], dropout: float, causal: bool, scale: float | None) -> Tensor:
    """`inputs`: query, key and value, [batch, heads, sequence, width]."""
    return _aten._scaled_dot_product_flash_attention_for_cpu(*inputs, dropout, causal, scale=scale)[0]


def fused_on_cuda(inputs: tuple[Tensor, Tensor, Tensor], dropout: float, causal: bool, scale: float | None) -> Tensor:
    """The memory-efficient one; flash, for half precision, keeps the same."""
    return _aten._scaled_dot_product_efficient_attention(*inputs, None, True, dropout, causal, scale=scale)[0]
