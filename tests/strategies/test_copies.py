"""Copies of modules whose layers hold functions that use layers."""

import functools
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.strategies.core.copies import copied, copy_of, give_own_memory, without_data
from paceline.strategies.core.state import load_state, state_of
from paceline.strategies.offload import Offload
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.tensor_parallel.find import all_pairs


def by_closure(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x, layer.weight, layer.bias) * 2


def by_method(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    old = layer.forward
    return lambda x: old(x) * 2


def by_default(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x, layer=layer: F.linear(x, layer.weight, layer.bias) * 2


def by_parameter(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    used = {"weight": layer.weight, "more": [layer.bias]}
    return lambda x: F.linear(x, used["weight"], used["more"][0]) * 2


def by_function(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    inner = by_closure(layer)

    def forward(x: Tensor, depth: int = 1) -> Tensor:
        return inner(x) if depth == 0 else forward(x, depth - 1)

    return forward


def by_partial(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda layer, x: F.linear(x, layer.weight, layer.bias) * 2, layer)


WAYS = [by_closure, by_method, by_default, by_parameter, by_function, by_partial]


def patched(way: Callable[[nn.Linear], Callable[[Tensor], Tensor]]) -> Any:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].forward = way(model[0])
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_forward_of_a_copy_uses_the_copys_weights(
    way: Callable[[nn.Linear], Callable[[Tensor], Tensor]],
) -> None:
    model, x = patched(way), torch.randn(5, 4)
    copy = copy_of(model)
    assert torch.equal(copy(x), model(x))
    copy(x).sum().backward()
    assert all(each.grad is None for each in model.parameters())
    assert all(each.grad is not None for each in copy.parameters())
    with torch.no_grad():
        copy[0].weight.zero_()
    assert not torch.equal(copy(x), model(x))
    assert without_data(model)(x.to("meta")).is_meta


def test_a_hook_of_a_copy_uses_the_copys_weights() -> None:
    model, x = patched(by_closure), torch.randn(5, 4)
    last = model[4]
    model[2].register_forward_hook(lambda _, given, output: output + last.weight.sum())
    assert torch.equal(copied(model)(x), model(x)) and without_data(model)(x.to("meta")).is_meta


def test_functions_that_use_no_layer_stay_the_same() -> None:
    model, scale = cast("Any", nn.Linear(4, 4)), torch.ones(4)
    model.act, model.scaled = F.relu, lambda x: x * scale
    copy = copied(model)
    assert copy.act is F.relu and copy.scaled is model.scaled


class Holds:
    """An object of a user's, with what has no copy of its own."""

    def __init__(self, file: Any) -> None:
        self.lock, self.again, self.file, self.module, self.count = threading.Lock(), threading.RLock(), file, F, 1
        self.condition = threading.Condition(self.lock)


def test_locks_of_a_copy_are_its_own_and_files_are_shared(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with (tmp_path / "log").open("w") as file:
        model.held = Holds(file)
        with model.held.lock, model.held.again:
            copy = copied(model).held
            with copy.lock:
                copy.condition.notify()  # raises where the lock is not its own
        assert copy is not model.held and copy.file is file and copy.module is F
        with pytest.raises(TypeError):
            pickle.dumps(model.held.lock)


def test_a_generator_goes_with_the_copy_that_is_alone_and_is_else_refused_by_its_name() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    model[0].rates = (each for each in [1.0])
    assert cast("Any", without_data(model))[0].rates is model[0].rates
    with pytest.raises(ConfigError, match=r"model: Sequential has no copy.*0\.rates is a generator.*hardware=local"):
        copy_of(model)


def test_a_stage_whose_layer_uses_another_layers_weight_is_refused() -> None:
    model = patched(by_closure)
    first, layer = model[0], model[2]
    layer.forward = lambda x: F.linear(x, layer.weight + first.weight.mean(), layer.bias)
    with pytest.raises(ConfigError, match=r"a function in the layer 2 uses 0\.weight, which is another layer's"):
        Pipeline(2).layers_alone(model)
    assert len(Pipeline(2).layers_alone(patched(by_closure))) == 5


class Called(nn.Sequential):
    def __call__(self, *given: Any) -> Any:
        return 2 * super().__call__(*given)


@pytest.mark.parametrize("own", ["forward", "hook", "call"])
def test_a_sequential_that_does_more_than_its_layers_is_not_taken_apart(own: str) -> None:
    model = patched(by_closure)
    if own == "call":
        model = Called(*model)
    elif own == "forward":
        model.forward = lambda input: 2 * nn.Sequential.forward(model, input)
    else:
        model.register_forward_hook(lambda module, given, output: output * 2)
    with pytest.raises(ConfigError, match="has a __call__ of its own, or a forward or hooks"):
        Pipeline(2).layers_alone(model)
    with pytest.raises(ConfigError, match="or has a forward or hooks of its own"):
        Offload().split(model)
    assert not all_pairs(model)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_expanded_buffer_is_given_memory_that_can_be_written(device: str) -> None:
    model: Any = nn.Linear(2, 2).to(device)
    model.register_buffer("scale", torch.full((1,), 3.0, device=device).expand(2, 4))
    model.register_buffer("whole", torch.zeros(3, device=device))
    model.register_buffer("part", model.whole[:1].expand(2))
    whole = model.whole.untyped_storage().data_ptr()
    give_own_memory(model)
    assert isinstance(model.scale, Tensor) and model.scale.stride() == (4, 1)
    assert isinstance(model.part, Tensor) and model.part.untyped_storage().data_ptr() == whole
    if device == "cpu":
        assert model.scale.eq(3).all()
        del model.part
        load_state(model, state_of(model) | {"scale": torch.ones(2, 4)})
        assert model.scale.eq(1).all()
