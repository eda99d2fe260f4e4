"""The sparse model against a dense matrix product, and its gradient's support."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec
from paceline.tasks.data.sparse import Sparse
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy, cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.logistic_regression import LogisticRegression
from paceline.tasks.models.mlp import MLP
from paceline.tasks.models.sparse_logistic_regression import SparseLogisticRegression

SPEC = DataSpec((2, 3), torch.float64, (), 4, None, None, features=9)
BATCH = torch.tensor(
    [[[1, 5, 8], [2.0, -1, 0.5]], [[5, 0, 0], [3.0, 0, 0]], [[7, 1, 7], [1.0, 1, 1]]], dtype=torch.float64
)
TARGETS = torch.tensor([0, 3, 1])


def dense_rows() -> Tensor:
    """[3, 9]: the batch, spelt out."""
    rows = torch.zeros(3, 9)
    for row, pairs in zip(rows, BATCH, strict=True):
        for feature, value in pairs.T.tolist():
            row[int(feature)] += value
    return rows


def random_model(**knobs: bool) -> tuple[SparseLogisticRegression, nn.Parameter]:
    model = SparseLogisticRegression(SPEC, **knobs)
    [weight] = model.parameters()
    nn.init.normal_(weight)
    return model, weight


@pytest.mark.parametrize("sparse", [True, False])
def test_outputs_and_gradient_are_those_of_the_dense_product(sparse: bool) -> None:
    model, weight = random_model(sparse_gradients=sparse)
    assert weight.shape == (9, 4)
    outputs = model(BATCH)
    cross_entropy(outputs, TARGETS).backward()
    same = weight.detach().clone().requires_grad_()
    expected = dense_rows() @ same
    F.cross_entropy(expected, TARGETS).backward()
    torch.testing.assert_close(outputs, expected)
    assert weight.grad is not None and weight.grad.is_sparse == sparse
    torch.testing.assert_close(weight.grad.to_dense() if sparse else weight.grad, same.grad)


def test_the_gradient_is_on_the_support_of_the_batch_and_nowhere_else() -> None:
    model, weight = random_model()
    cross_entropy(model(BATCH), TARGETS).backward()
    assert weight.grad is not None
    assert set(weight.grad._indices().flatten().tolist()) == {0, 1, 5, 7, 8}


def test_it_starts_at_a_uniform_guess_and_a_feature_never_seen_says_nothing() -> None:
    model = SparseLogisticRegression(SPEC)
    assert torch.equal(model(BATCH), torch.zeros(3, 4))
    cross_entropy(model(BATCH), TARGETS).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert bool(model(BATCH).abs().sum() > 0)
    never = torch.tensor([[[2, 3, 4], [1.0, 1, 1]]], dtype=torch.float64)
    assert torch.equal(model(never), torch.zeros(1, 4))


def test_numbers_of_features_beyond_what_float32_holds_are_told_apart() -> None:
    """2^24 and 2^24 + 1, looked up in a table that is smaller."""
    model = SparseLogisticRegression(SPEC)
    [bag] = [layer for layer in model.modules() if isinstance(layer, nn.EmbeddingBag)]
    looked_up: list[Tensor] = []

    def look(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        looked_up.append(inputs[0])
        return torch.zeros_like(inputs[0])

    bag.register_forward_pre_hook(look)
    model(torch.tensor([[[2.0**24, 2.0**24 + 1], [1, 1]]], dtype=torch.float64))
    assert looked_up[0].tolist() == [[2**24, 2**24 + 1]]


def test_it_has_a_shape_on_the_meta_device_backward_included() -> None:
    with torch.device("meta"):
        model = SparseLogisticRegression(SPEC)
    outputs = model(BATCH.to("meta"))
    assert outputs.is_meta and outputs.shape == (3, 4)
    outputs.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
def test_it_learns_the_synthetic_data_one_sample_at_a_time() -> None:
    torch.manual_seed(0)
    data = Sparse(features=20_000, nonzeros=50, samples=2000)
    train, test = data.load()
    model = SparseLogisticRegression(data.spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in zip(lone(train.samples).split(1), train.targets.split(1), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert evaluate(CrossEntropy(), model, test).score > 0.9


@pytest.mark.parametrize("model", [MLP, CNN, LogisticRegression])
def test_dense_models_refuse_sparse_samples_and_name_the_one_that_takes_them(model: Callable[..., nn.Module]) -> None:
    with pytest.raises(ConfigError, match="model=sparse_logistic_regression") as caught:
        model(SPEC)
    assert caught.value.exit_code == 2


def test_other_samples_are_refused_and_sparse_ones_are_no_text() -> None:
    image = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)
    with pytest.raises(ConfigError, match="data=sparse"):
        SparseLogisticRegression(image)
    with pytest.raises(ConfigError, match="data=text"):
        GPT(SPEC)
