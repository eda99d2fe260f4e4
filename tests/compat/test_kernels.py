"""What calibration calls of torch's own operators is what their functions call; what is counted of them."""

import torch
import torch.nn.functional as F

from paceline.compat.flops import flops_of
from paceline.compat.kernels import attention, attention_backward, log_softmax, log_softmax_backward


def test_attention_and_its_gradient_are_torchs() -> None:
    x = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out, sums = attention(x.detach())
    whole = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(out, whole)
    gradients = attention_backward(torch.ones_like(out), x.detach(), out, sums)
    assert isinstance(gradients, tuple)
    whole.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(sum(gradients), x.grad)


def test_log_softmax_and_its_gradient_are_torchs() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = torch.log_softmax(x, 1)
    torch.testing.assert_close(log_softmax(x.detach()), out)
    out.pow(2).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(log_softmax_backward(2 * out.detach(), out.detach()), x.grad)


def test_flops_of_a_product_are_counted_and_of_a_sum_none() -> None:
    a = torch.ones(2, 3)
    assert flops_of(torch.ops.aten.mm.default, (a, a.t()), {}, a @ a.t()) == 2 * 2 * 3 * 2
    assert flops_of(torch.ops.aten.add.Tensor, (a, a), {}, a + a) == 0
