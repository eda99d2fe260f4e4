"""An AlexNet for small images against plain functions of torch, its size, and how it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import trained

from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec
from paceline.tasks.data.digits import Digits
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.alexnet import AlexNet

CIFAR = DataSpec((3, 32, 32), torch.float32, (), 10, 50_000, 10_000)
CHANNELS = (3, 4, 5, 4, 3)


def sized(height: int, width: int) -> DataSpec:
    return DataSpec((2, height, width), torch.float32, (), 6, None, None)


def in_plain_torch(model: nn.Module, x: Tensor) -> Tensor:
    """The paper's figure 2, layer by layer."""
    weights = dict(model.named_parameters())

    def convolved(x: Tensor, number: int) -> Tensor:
        weight, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
        around = weight.shape[-1] // 2
        return F.conv2d(F.pad(x, (around,) * 4), weight, bias).clamp_min(0)

    def pooled(x: Tensor) -> Tensor:
        """The largest of each 3 x 3 that has its middle at an even row and column."""
        rows = F.pad(x, (1, 1, 1, 1), value=float("-inf"))
        return rows.unfold(2, 3, 2).unfold(3, 3, 2).amax((4, 5))

    x = pooled(convolved(x, 1))
    x = pooled(convolved(x, 2))
    x = pooled(convolved(convolved(convolved(x, 3), 4), 5)).flatten(1)
    for number in (1, 2):
        x = (x @ weights[f"hidden{number}.weight"].T + weights[f"hidden{number}.bias"]).clamp_min(0)
    return x @ weights["output.weight"].T + weights["output.bias"]


@pytest.mark.parametrize(("height", "width"), [(5, 5), (8, 8), (9, 14)])
def test_it_is_the_papers_layers_one_after_the_other(height: int, width: int) -> None:
    torch.manual_seed(0)
    model = AlexNet(sized(height, width), channels=CHANNELS, hidden=(7, 6)).double().eval()
    x = torch.randn(3, 2, height, width, dtype=torch.float64)
    torch.testing.assert_close(model(x), in_plain_torch(model, x), rtol=1e-12, atol=1e-12)


def test_its_two_hidden_layers_drop_out_in_training_alone() -> None:
    torch.manual_seed(0)
    model, x = AlexNet(CIFAR), torch.randn(2, 3, 32, 32)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    assert [name for name, layer in model.named_children() if isinstance(layer, nn.Dropout)] == ["dropout1", "dropout2"]


def test_parameters_are_as_stated() -> None:
    with torch.device("meta"):
        model = AlexNet(CIFAR)
    convolutions = 24 * (25 * 3 + 1) + 64 * (25 * 24 + 1) + 96 * (9 * 64 + 1) + 96 * (9 * 96 + 1) + 64 * (9 * 96 + 1)
    linear = (64 * 4 * 4 + 1) * 512 + 513 * 512 + 513 * 10
    assert sum(p.numel() for p in model.parameters()) == convolutions + linear == 1_026_666


@pytest.mark.parametrize(("height", "width"), [(4, 5), (28, 4)])
def test_smaller_images_are_refused(height: int, width: int) -> None:
    with pytest.raises(ConfigError, match=rf"model=alexnet needs images .* of at least 5x5; .*{height}, {width}\]"):
        AlexNet(sized(height, width))


def test_a_few_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    small = AlexNet(Digits().spec, channels=(8, 8, 16, 16, 16), hidden=(32, 32), dropout=0.0)
    losses = trained(small, steps=40, batch=32, lr=3e-3)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


@pytest.mark.slow
def test_digits_are_told_apart() -> None:
    torch.manual_seed(0)
    model = AlexNet(Digits().spec)
    trained(model, steps=300, batch=64, lr=1e-3)
    assert evaluate(CrossEntropy(), model, Digits().load()[1]).score > 0.95
