"""Models in unusual forms train as the same models in plain torch do."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.strategies.core.copies import copy_of
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.offload import Offload
from paceline.strategies.sync.bsp import BSP
from paceline.testing import FABRICS, TrainingCase, TrainingPlan, distance, serial, train
from paceline.testing.training import CLASSES, FEATURES

SIZES = [[4, 4], [3, 4], [4, 4]]  # [step][replica] samples


class Checkpointed(nn.Module):
    """A linear layer, some of whose uses are computed again in backward, by a reentrant checkpoint."""

    def __init__(self, also_plain: bool) -> None:
        super().__init__()
        self.layer, self.also_plain = nn.Linear(8, 8), also_plain

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.layer, x, use_reentrant=True)
        return y + self.layer(x) if self.also_plain else y


def reentrant(also_plain: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), Checkpointed(also_plain), nn.Tanh(), nn.Linear(8, CLASSES)
    ).double()


def reentrant_and_plain() -> nn.Sequential:
    return reentrant(also_plain=True)


@pytest.mark.parametrize("strategy", [DataParallel, Offload])
@pytest.mark.parametrize("model", [reentrant, reentrant_and_plain])
def test_a_reentrant_checkpoint_trains_its_weights(model, strategy):
    case = TrainingCase(SIZES, model)
    results = FABRICS["virtual"](2, train, TrainingPlan(strategy(), BSP(), case))
    assert all(distance(each["weights"], serial(case)) < 1e-12 for each in results)


def scripted() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    for i in (0, 2):
        model[i] = torch.jit.script(model[i])
    return model


def test_a_copy_of_a_scripted_layer_has_its_own_gradients():
    model = scripted()
    model[0].bias.requires_grad_(False)
    copy = copy_of(model)
    copy(torch.ones(1, FEATURES, dtype=torch.float64)).sum().backward()
    assert all(each.grad is None for each in model.parameters())
    assert [each.grad is not None for each in copy.parameters()] == [each.requires_grad for each in model.parameters()]
