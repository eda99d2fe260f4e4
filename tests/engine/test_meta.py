"""Passes on the meta device are the same with operations remembered, and quicker by what is not computed again."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: F.linear(x, meta(5, 3, dtype=x.dtype), meta(5, dtype=x.dtype)),
        lambda x: F.linear(x.t().contiguous().t(), meta(5, 3, dtype=x.dtype), meta(5, dtype=x.dtype)),
        lambda x: torch.addmm(meta(4, 1, dtype=x.dtype), x, meta(3, 5, dtype=x.dtype)),
        lambda x: torch.addmm(meta(5, dtype=x.dtype), x, meta(3, 5, dtype=x.dtype), beta=2),
        lambda x: F.linear(x, meta(5, 3, dtype=torch.float64), meta(5)),
        F.relu,
        lambda x: F.relu(x.t()),
        lambda x: F.log_softmax(x, -1),
        lambda x: F.log_softmax(x.t(), 0),
        lambda x: F.cross_entropy(x, meta(4, dtype=torch.int64)),
        lambda x: F.cross_entropy(x, meta(4, dtype=torch.int64), reduction="sum"),
        lambda x: F.cross_entropy(x, meta(4, dtype=torch.int64), reduction="none"),
        lambda x: F.cross_entropy(x, meta(4, dtype=torch.int64), weight=meta(3, dtype=x.dtype)),
        lambda x: F.cross_entropy(meta(2, 3, 6, dtype=x.dtype), meta(2, 6, dtype=torch.int64)),
        lambda x: x.t().clone(),
        lambda x: x.clone(memory_format=torch.contiguous_format),
        torch.zeros_like,
        lambda x: torch.zeros_like(x, dtype=torch.int64),
        lambda x: torch.zeros_like(x, dtype=torch.bool),
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: meta(4, 3, dtype=x.dtype).add_(x, alpha=2),
        lambda x: meta(4, 3, dtype=x.dtype).add_(meta(3)),
    ],
)
def test_results_look_as_torchs_do(operation: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    def looks() -> tuple[object, ...]:
        result = operation(meta(4, 3, dtype=dtype).requires_grad_())
        return result.shape, result.stride(), result.dtype, result.device, result.requires_grad

    with Repeats():
        found = [looks(), looks()]
    assert found == [looks()] * 2


@pytest.mark.parametrize(
    "operation",
    [
        lambda: F.linear(meta(4, 3), meta(5, 2), meta(5)),
        lambda: F.linear(meta(4, 3), meta(5, 3), meta(6)),
        lambda: F.log_softmax(meta(4, 3), 2),
        lambda: F.cross_entropy(meta(4, 3), meta(5, dtype=torch.int64)),
        lambda: meta(4, 3).add_(meta(5)),
        lambda: meta(4, 3, dtype=torch.int64).add_(meta(4, 3)),
    ],
)
def test_what_torch_refuses_is_refused(operation: Callable[[], Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as plain:
        operation()
    with Repeats(), pytest.raises(plain.type) as found:
        operation()
    assert str(found.value) == str(plain.value)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_factors_of_two_dtypes_are_refused_in_the_words_of_the_cpu(dtype: torch.dtype, bias: bool) -> None:
    """torch's meta device multiplies them."""

    def product(device: str) -> Tensor:
        layer = torch.nn.Linear(3, 5, bias=bias, device=device)
        return layer(torch.zeros(4, 3, dtype=dtype, device=device))

    with pytest.raises(RuntimeError) as real:
        product("cpu")
    with Repeats(), pytest.raises(RuntimeError) as found:
        product("meta")
    assert str(found.value) == str(real.value)
