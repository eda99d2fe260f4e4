"""The operations that torch fuses attention into."""

import pytest
import torch
from torch import Tensor

from paceline.compat.attention import fused_on_cpu, fused_on_cuda


@pytest.mark.parametrize("fused", [fused_on_cpu, fused_on_cuda])
def test_fused_attention_has_the_shape_of_the_values_and_keeps_no_matrix_of_scores(fused) -> None:
    query, key, value = (torch.empty(2, 4, 64, 8, device="meta", requires_grad=True) for _ in range(3))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (kept.append(tensor), tensor)[1], lambda kept: kept):
        joined = fused((query, key, value), 0.0, True, None)
    assert joined.shape == value.shape, "torch's fused attention gives something else: activations are not planned for"
    assert kept and max(tensor.numel() for tensor in kept) == value.numel() < 2 * 4 * 64 * 64
