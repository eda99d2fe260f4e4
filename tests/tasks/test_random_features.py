"""Random Fourier features, against the kernel that they are for."""

from typing import Any, cast

import pytest
import torch
from sklearn.svm import SVC

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses.hinge import Hinge
from paceline.tasks.models.random_features import FourierFeatures, RandomFeatures

SPEC = DataSpec((1, 2, 3), torch.float32, (), 4, None, None)


@pytest.mark.parametrize("gamma", [0.05, 0.3, 1.0])
def test_products_of_features_are_the_gaussian_kernel_to_within_their_error(gamma):
    """By Hoeffding, each product is off by more than 0.05 with a probability below 1e-8 at D = 2^16."""
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    z = FourierFeatures(6, 2**16, gamma, seed=1)(x)
    kernel = torch.exp(-gamma * torch.cdist(x, x).square())
    assert (z @ z.T - kernel).abs().max() < 0.05


def test_the_error_goes_down_with_more_features():
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    kernel = torch.exp(-0.1 * torch.cdist(x, x).square())

    def error(features: int) -> float:
        z = FourierFeatures(6, features, 0.1, seed=1)(x)
        return float((z @ z.T - kernel).square().mean().sqrt())

    assert error(4096) < 0.5 * error(256)


def test_features_follow_from_their_own_seed_and_take_nothing_from_torchs():
    torch.manual_seed(0)
    one, after = RandomFeatures(SPEC, features=8, seed=3), torch.rand(1)
    torch.manual_seed(0)
    linear = torch.nn.Linear(8, 4)
    assert torch.equal(after, torch.rand(1)) and torch.equal(one.get_parameter("output.weight"), linear.weight)
    torch.manual_seed(7)
    again, other = RandomFeatures(SPEC, features=8, seed=3), RandomFeatures(SPEC, features=8, seed=4)
    for name in ("features.w", "features.b"):
        assert torch.equal(one.get_buffer(name), again.get_buffer(name))
    assert not torch.equal(one.get_buffer("features.w"), other.get_buffer("features.w"))


def test_the_linear_layer_alone_is_trained_and_the_features_are_saved():
    model = RandomFeatures(SPEC, features=8)
    assert {name for name, _ in model.named_parameters()} == {"output.weight", "output.bias"}
    assert model.state_dict().keys() == {"features.w", "features.b", "output.weight", "output.bias"}
    with torch.device("meta"):
        meta = RandomFeatures(SPEC, features=8)
    assert {n: t.shape for n, t in meta.state_dict().items()} == {n: t.shape for n, t in model.state_dict().items()}
    assert meta(torch.empty(5, 1, 2, 3, device="meta")).shape == (5, 4)


def test_gamma_is_one_over_the_entries_of_a_sample_unless_it_is_given():
    scaled = FourierFeatures(6, 8, 1 / 6, seed=0).w
    assert torch.equal(RandomFeatures(SPEC, features=8).get_buffer("features.w"), scaled)
    assert torch.allclose(RandomFeatures(SPEC, features=8, gamma=4 / 6).get_buffer("features.w"), 2 * scaled)


@pytest.mark.slow
def test_with_the_hinge_loss_digits_are_classified_as_by_a_kernel_machine():
    """To within two points of sklearn's; a linear model is further off."""
    data = Digits()
    train, test = data.load()
    oracle = cast(Any, SVC)(kernel="rbf", gamma=1 / 64).fit(
        lone(train.samples).flatten(1).numpy(), train.targets.numpy()
    )
    reached = oracle.score(lone(test.samples).flatten(1).numpy(), test.targets.numpy())
    torch.manual_seed(0)
    model, hinge = RandomFeatures(data.spec), Hinge()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        hinge.loss(model(train.inputs), train.targets).backward()
        optimizer.step()
    accuracy = float((model(test.inputs).argmax(1) == test.targets).float().mean())
    assert reached > 0.97 and accuracy > reached - 0.02


def test_data_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="model=random_features"):
        RandomFeatures(DataSpec((12,), torch.int64, (12,), 256, None, None))
