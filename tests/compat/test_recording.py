"""Torch's private parts by which a pass is recorded and replayed are there, and do what they are used for."""

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from paceline.compat.recording import (
    OperationRecorder,
    below_autograd,
    fast_call,
    gradient_hooks,
    hook_first,
    is_plain_pass,
    plain_call,
    takes_gradients,
)


def test_a_recorder_sees_both_passes() -> None:
    weight, x = nn.Parameter(torch.randn(2, 3)), torch.randn(4, 3)
    with OperationRecorder([weight, x], 10_000) as recorder:
        torch.autograd.grad(nn.functional.linear(x, weight).sum(), [weight])
    assert [call[0]._schema.name for call in recorder.calls].count("aten::mm") == 2


def test_operations_below_autograd_have_no_history() -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    for caller in (fast_call, plain_call):
        with below_autograd():
            made = caller(torch.ops.aten.mm.default)(weight, weight)
        assert torch.equal(made, weight.detach() @ weight.detach()) and not made.requires_grad


def test_a_hook_that_is_first_is_called_before_the_others() -> None:
    weight, called = nn.Parameter(torch.ones(2)), list[str]()
    weight.register_post_accumulate_grad_hook(lambda _: called.append("other"))
    handle = hook_first(weight, lambda _: called.append("first"))
    weight.sum().backward()
    assert called == ["first", "other"] and len(gradient_hooks(weight)) == 2
    handle.remove()
    assert len(gradient_hooks(weight)) == 1


def test_parameters_that_wait_for_a_gradient() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert takes_gradients([weight])
    handle = weight.register_hook(lambda gradient: gradient)
    assert not takes_gradients([weight])
    handle.remove()
    assert takes_gradients([weight])
    weight.grad = torch.ones(2)
    assert not takes_gradients([weight])


def test_a_pass_that_something_of_torch_looks_at_is_not_plain() -> None:
    def same(tensor: Tensor) -> Tensor:
        return tensor

    found = [is_plain_pass()]
    with saved_tensors_hooks(same, same):
        found.append(is_plain_pass())
    with torch.no_grad():
        found.append(is_plain_pass())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(is_plain_pass())
    with torch.autograd.set_detect_anomaly(True):
        found.append(is_plain_pass())
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    found.append(is_plain_pass())
    handle.remove()
    assert found == [True, False, False, False, False, False] and is_plain_pass()
