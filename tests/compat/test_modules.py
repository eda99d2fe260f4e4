"""Without these a model that swaps a layer in mid-run would not be noticed."""

import torch
from torch import nn

from paceline.compat.modules import registered


def test_what_is_registered_is_seen_as_it_changes() -> None:
    model = nn.Module()
    parameters, children = registered(model)
    model.weight, model.layer = nn.Parameter(torch.zeros(1)), nn.Linear(1, 1)
    assert parameters == {"weight": model.weight} and children == {"layer": model.layer}
    del model.layer
    assert children == {}
