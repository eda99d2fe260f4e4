"""Modes between torch and its operations."""

from typing import Any

import torch

from paceline.compat.dispatch import FakeTensorMode, TorchDispatchMode, aliases_first, has_values, results_of, writes

aten = torch.ops.aten


def test_an_operation_says_whether_it_writes_and_how_many_results_it_has() -> None:
    assert (writes(aten.add_.Tensor), writes(aten.add.Tensor)) == (True, False), (
        "torch's operations say elsewhere what they write: plans would take an in-place operation for a new tensor"
    )
    assert (results_of(aten.add.Tensor), results_of(aten.topk.default)) == (1, 2), (
        "torch's operations say elsewhere how many results they have: plans would unpack a single one"
    )


def test_an_operation_says_whether_it_may_return_its_arguments_memory() -> None:
    assert all(map(aliases_first, ("detach", "view", "t", "slice", "mul_"))) and not any(
        map(aliases_first, ("mul", "relu", "", "no_such_operation"))
    ), "torch's operations say elsewhere what they alias: a change of a buffer in a trace would not be seen"


def test_a_mode_sees_every_operation() -> None:
    seen: list[Any] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Noting():
        _ = torch.ones(2) + 1
    assert aten.add.Tensor in seen, "torch's dispatch modes see no operations: plans would take their full time"


def test_a_fake_tensor_computes_shapes_alone() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        product = torch.ones(2**20, 2**20) @ torch.ones(2**20, 3)  # 4 TiB, if they were there
    assert product.shape == (2**20, 3) and product.device.type == "cpu", (
        "torch's fake tensors are others: strategy=offload could not rehearse its step without memory"
    )


def test_a_fake_tensor_and_one_of_the_meta_device_have_no_values() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    assert not fake.is_meta and not has_values(fake) and not has_values(torch.ones(2, device="meta"))
    assert has_values(torch.ones(2)) and has_values(torch.nn.Parameter(torch.ones(2)))
