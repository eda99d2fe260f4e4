"""Weights that stand in memory in another order than row by row are trained, and resumed, like all others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from oracles import FEATURES, ROUNDING, Case, Plan, distance, identical, images64, mlp64, serial, train
from replicas import Life, live, saved_after
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.exchange.clip import ByNorm
from paceline.strategies.core.copies import give_own_memory
from paceline.strategies.core.memory_format import is_dense, keep_layout, laid_out
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.dion import Dion
from paceline.testing.fabrics import run_virtual

TINY = 100 / 2**20  # MiB: buckets of 100 bytes


def last() -> nn.Module:
    model: Any = images64()
    return model.to(memory_format=torch.channels_last)


def columns() -> nn.Module:
    """A matrix was transposed, as those of TensorFlow are, and one is part of a decomposition."""
    model: Any = mlp64()
    model[0].weight.data = model[0].weight.detach().t().contiguous().t()
    model[2].weight.data = torch.linalg.qr(torch.randn(10, 10).double())[0][:, :8].t()
    return model


def fused(kind: Any, parameters: Any) -> torch.optim.Optimizer:
    optimizer = kind(parameters, lr=0.05, fused=True, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    keep_layout(optimizer)
    return optimizer


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "channels_last": (last, (1, 8, 8)),
    "columns": (columns, (FEATURES,)),
}
MODES: dict[str, Callable[[], BSP]] = {
    "bsp": BSP,
    "find_unused": lambda: BSP(bucket_mb=TINY, find_unused=True),
    "clip": lambda: BSP(clip=ByNorm(0.1)),
}


def case_of(model: str, kind: Any, sizes: list[list[int]]) -> Case:
    make, shape = MODELS[model]
    return Case(sizes, model=make, optimizer=partial(fused, kind), shape=shape)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("mode", MODES)
def test_replicas_with_a_fused_optimizer_equal_one_worker(model: str, kind: Any, mode: str) -> None:
    case = case_of(model, kind, [[3, 2]] * 3)
    [alone] = run_virtual(1, train, Plan(DataParallel(), MODES[mode](), case_of(model, kind, [[5]] * 3)))
    for result in run_virtual(2, train, Plan(DataParallel(), MODES[mode](), case)):
        assert distance(result["weights"], alone["weights"]) < ROUNDING
    if mode != "clip":
        assert distance(alone["weights"], serial(case)) < ROUNDING


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_state_of_a_fused_optimizer_is_loaded_in_the_format_of_its_weights(model: str, replicas: int) -> None:
    case = case_of(model, torch.optim.AdamW, [[2] * replicas] * 4)
    whole = run_virtual(replicas, live, Life(BSP(), case))
    resumed = run_virtual(replicas, live, Life(BSP(), case, saved=saved_after(whole, 2), start=2))
    assert identical(resumed[0]["weights"], whole[0]["weights"])


def test_dion_steps_with_gradients_in_the_format_of_their_weights() -> None:
    """It sums those of the convolutions itself."""

    def weights(make: Callable[[], nn.Module]) -> Any:
        case = Case([[3, 2]] * 3, model=make, optimizer=partial(fused, torch.optim.AdamW), shape=(1, 8, 8))
        return run_virtual(2, live, Life(Dion(rank=2), case))[0]["weights"]

    assert distance(weights(last), weights(images64)) < ROUNDING


class Formatted(nn.Sequential):
    """A stage ends with images in channels_last; a matrix is transposed."""

    def __init__(self, formats: bool = True) -> None:
        inner = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
        super().__init__(*inner, nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        for weight in self.parameters() if formats else ():
            if weight.dim() == 4:
                weight.data = weight.detach().contiguous(memory_format=torch.channels_last)
            elif weight.dim() == 2:
                weight.data = weight.detach().t().contiguous().t()


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["torch_tensor", "torch_pipelining", "pipeline", "torch_ddp"])
def test_no_strategy_trains_otherwise_in_another_format(here: Any, strategy: str) -> None:
    own = ["optimizer=adam", "hardware.workers=2", "batch_size=16", "steps=6", "data.limit=96", "tracking=none"]

    def weights(formats: bool) -> Any:
        model = f"model={{_target_:{__name__}.Formatted,formats:{formats}}}"
        run = engine.run([model, f"strategy={strategy}", *own], allow_modules=[__name__], quiet=True)
        return load_file(run.path / "model.safetensors")

    assert distance(weights(True), weights(False)) < 1e-5


def test_a_stage_of_deepspeed_in_another_format_is_refused() -> None:
    model = f"model={{_target_:{__name__}.Formatted}}"
    with pytest.raises(ConfigError, match=r"^strategy=deepspeed_pipeline: parameter 2\.weight is not contiguous"):
        engine.prepare([model, "strategy=deepspeed_pipeline", "hardware.workers=2"], allow_modules=[__name__]).plan()


def test_a_slice_of_columns_is_given_dense_memory() -> None:
    model: Any = nn.Linear(4, 16)
    model.weight = nn.Parameter(torch.arange(256.0).reshape(16, 16)[:, :4])
    assert not is_dense(model.weight)
    give_own_memory(model)
    assert is_dense(model.weight) and model.weight[1].tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_slices_of_one_matrix_are_given_dense_memory_unless_they_have_elements_in_common(device: str) -> None:
    model: Any = nn.ParameterDict()
    whole = torch.arange(96.0, device=device).reshape(8, 12)
    model["q"], model["k"], model["v"] = map(nn.Parameter, whole.chunk(3, dim=1))
    model["none"] = nn.Parameter(whole[0].expand(0, 12))  # has no element in common with another
    give_own_memory(model)
    assert all(map(is_dense, model.values()))
    assert device == "meta" or torch.cat([model["q"], model["k"], model["v"]], dim=1).equal(whole)
    first = model["q"] = nn.Parameter(whole[:, :4])
    model["k"] = nn.Parameter(whole[:, 3:8])
    give_own_memory(model)
    assert model["q"] is first and not is_dense(first) and not is_dense(model["k"])


def test_a_tensor_in_the_format_of_another_keeps_its_values() -> None:
    weight, values = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5).double()
    found: Tensor = laid_out(values, weight)
    assert found.stride() == weight.stride() and found.dtype == torch.float64 and found.equal(values)
    assert laid_out(found, weight) is found
    sparse = torch.eye(3).to_sparse()
    assert laid_out(sparse, torch.zeros(3, 3)) is sparse


def test_state_under_other_keys_than_parameters_is_loaded_as_it_is() -> None:
    weight = nn.Parameter(torch.zeros(2, 3).t())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    keep_layout(optimizer)
    kept = {0: {"m": torch.ones(3, 2)}, "steps": 3, "all": {"mean": torch.ones(3, 2)}}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
    state: Any = optimizer.state
    assert state[weight]["m"].stride() == (1, 3) and state["steps"] == 3 and state["all"]["mean"].stride() == (2, 1)
