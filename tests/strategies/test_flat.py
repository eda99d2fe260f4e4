"""A model's weights as one vector."""

import pytest
import torch
from oracles import Branching, TwoDtypes, identical, mlp, weights_of
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.exchange.flat import check_one_dtype, flatten


@pytest.mark.parametrize("make", [mlp, Branching])
def test_parameters_keep_their_values_and_become_views_in_order(make):
    model = make()
    before = weights_of(model)
    flat = flatten(model.parameters())
    assert identical(weights_of(model), before)
    assert torch.equal(flat, torch.cat([tensor.flatten() for tensor in before.values()]))
    flat.mul_(2)
    assert identical(weights_of(model), {name: 2 * tensor for name, tensor in before.items()})
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_a_model_trains_on_through_the_vector():
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    flat = flatten(model.parameters())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)]
    for _ in range(3):
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            m(torch.ones(2, 6)).square().sum().backward()
            optimizer.step()
    assert identical(weights_of(model), weights_of(twin))
    assert torch.equal(flat, nn.utils.parameters_to_vector(twin.parameters()))


def test_a_transposed_parameter_is_laid_out_by_rows():
    parameter = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    flat = flatten([parameter])
    assert torch.equal(parameter, torch.arange(6.0).view(2, 3).t())
    assert torch.equal(flat, torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]))


def test_several_dtypes_are_refused_with_what_takes_them():
    with pytest.raises(ConfigError, match=r"sync: .* 2 \(torch.float32, torch.float64\); sync=bsp") as caught:
        flatten(TwoDtypes().parameters())
    assert caught.value.exit_code == 2
    check_one_dtype(list(mlp().parameters()))
