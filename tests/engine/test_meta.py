"""Passes on the meta device are the same with operations remembered, and quicker by what is not computed again."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paceline import engine
from paceline.engine.base.meta import Repeats

BLOCKS = ["model=gpt", "data=text", "model.n_layer=3", "model.width=64"]


class Counting(TorchDispatchMode):
    """What reaches the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func] += 1
        return func(*args, **(kwargs or {}))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "how",
    [
        ["model=mlp", "strategy=single"],
        ["model=cnn", "strategy=data_parallel", "hardware.workers=2"],
        ["model=sparse_logistic_regression", "data=sparse", "strategy=single"],
        [*BLOCKS, "strategy=single", "model.dropout=0.1"],
        [*BLOCKS, "strategy=single", "model.recompute=true", "model.tied=true"],
        [*BLOCKS, "strategy=zero", "precision=bf16", "strategy.recompute=true"],
        [*BLOCKS, "strategy=pipeline", "strategy.stages=3", "hardware.workers=3", "batch_size=7"],
        [*BLOCKS, "strategy=pipeline", "hardware=h200", "hardware.workers=2"],
        [*BLOCKS, "strategy=offload"],
    ],
    ids=" ".join,
)
def test_a_plan_is_the_same_without_remembering(how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    remembering = engine.prepare(how).plan()

    def forget(self: Repeats, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    monkeypatch.setattr(Repeats, "__torch_dispatch__", forget)
    plain = engine.prepare(how).plan()
    assert remembering.as_dict() == plain.as_dict()
    assert remembering.parts == plain.parts


def test_an_operation_on_what_looks_alike_is_computed_once() -> None:
    weight, other = meta(5, 3), meta(5, 3)
    with Counting() as device, Repeats():
        results = [meta(4, 3) @ w.t() for w in (weight, other, weight)]
    assert device.seen[torch.ops.aten.mm.default] == 1
    assert {tuple(result.shape) for result in results} == {(4, 5)}
    assert len({result.untyped_storage()._cdata for result in results}) == 3


def test_all_of_several_results_are_remembered_and_none_stays_none() -> None:
    norm = torch.nn.LayerNorm(3, device="meta")
    with Counting() as device, Repeats():
        for _ in range(2):
            x = meta(4, 3).requires_grad_()
            norm(x).sum().backward()
            assert x.grad is not None and x.grad.shape == (4, 3)
            values, indices = meta(4, 3).max(dim=1)
            assert (values.shape, indices.dtype) == ((4,), torch.int64)
            gradient, *none = torch.ops.aten.native_layer_norm_backward(
                meta(4, 3), meta(4, 3), [3], meta(4, 1), meta(4, 1), None, None, [True, False, False]
            )
            assert gradient.shape == (4, 3) and none == [None, None]
    aten = torch.ops.aten
    assert device.seen[aten.native_layer_norm.default] == device.seen[aten.max.dim] == 1


def test_what_looks_other_is_computed() -> None:
    integers, turned = meta(2, 3, dtype=torch.int64), meta(3, 2, dtype=torch.int64).t()
    with Repeats():
        assert (integers + 1).dtype is torch.int64
        assert (integers + 1.0).dtype is torch.float32
        assert (integers + True).dtype is torch.int64
        assert (integers * 2).stride() == (3, 1)
        assert (turned * 2).stride() == (1, 2)
        assert (meta(2, 3) + 1).dtype is torch.float32


def test_views_stay_views() -> None:
    with Repeats():
        for _ in range(2):
            x = meta(4, 6)
            for view in (x.view(24), x.t(), x[1:], x.unbind(0)[0], torch.ops.aten._unsafe_view(x, [24])):
                assert view.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_in_place_operations_and_those_on_real_tensors_go_on_as_ever() -> None:
    with Repeats():
        for n in (2.0, 3.0):
            assert torch.equal(torch.zeros(3).fill_(n) + 1, torch.tensor([n + 1] * 3))
            x = meta(4, 6)
            assert x.normal_() is x and x.add_(1) is x
            assert x.squeeze_().t_().shape == (6, 4)


def test_sparse_tensors_are_left_alone() -> None:
    with Repeats():
        for size in (3, 4):
            indices, values = torch.tensor([[0, 1]]), torch.ones(2)
            sparse = torch.sparse_coo_tensor(indices, values, (size,), check_invariants=True)
            assert (sparse * 2).to_dense().shape == (size,)
