"""Without these a model that swaps a layer in mid-run would not be noticed."""

import torch
from torch import nn

from paceline.compat.modules import buffers_in, is_hooked_before, registered, saved_buffers


def test_what_is_registered_is_seen_as_it_changes() -> None:
    model = nn.Module()
    parameters, children = registered(model)
    model.weight, model.layer = nn.Parameter(torch.zeros(1)), nn.Linear(1, 1)
    assert parameters == {"weight": model.weight} and children == {"layer": model.layer}
    del model.layer
    assert children == {}


def test_saved_buffers_are_those_of_the_state() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Module())
    model.own, model[1].unsaved = nn.Buffer(torch.zeros(1)), nn.Buffer(torch.zeros(1), persistent=False)
    model.register_buffer("none", None)
    parameters = dict(model.named_parameters())
    assert [name for name, _ in saved_buffers(model)] == [name for name in model.state_dict() if name not in parameters]
    assert buffers_in(model) == {"own": model.own, "none": None}


def test_what_is_called_before_a_forward_pass_is_seen() -> None:
    plain, normed = nn.Linear(2, 2), nn.utils.spectral_norm(nn.Linear(2, 2))
    assert (is_hooked_before(plain), is_hooked_before(normed)) == (False, True)
