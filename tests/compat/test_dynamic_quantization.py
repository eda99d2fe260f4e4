"""torch's dynamic quantization computes what it is said to, and warns nobody."""

import sys

import pytest
import torch
from torch import Tensor, nn

from paceline.compat.changed import ChangedLibraryError
from paceline.compat.dynamic_quantization import dynamically_quantized


def by_hand(x: Tensor, layer: nn.Linear) -> Tensor:
    """s_w s_x (q_w (q_x - z_x)) + b: weights of -128 to 127, inputs of 0 to 127 whose range has 0 in it."""
    s_w = layer.weight.abs().max() / 127.5
    q_w = (layer.weight / s_w).round().clamp(-128, 127)
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    s_x = (high - low) / 127
    z_x = (-low / s_x).round()
    q_x = ((x / s_x).round() + z_x).clamp(0, 127)
    return s_w * s_x * ((q_x - z_x) @ q_w.T) + layer.bias


def test_a_linear_layer_multiplies_integers_and_the_model_stays_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    before = [each.clone() for each in model.parameters()]
    x = torch.randn(7, 6)
    with torch.no_grad():
        first, _, last = model
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        expected = by_hand(by_hand(x, first).relu(), last)
        torch.testing.assert_close(dynamically_quantized(model)(x), expected, rtol=1e-4, atol=1e-5)
        assert not torch.equal(model(x), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_without_it_is_said_what_cannot_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.ao", None)
    with pytest.raises(
        ChangedLibraryError, match=r"^torch 2\S+: has no torch.ao.quantization, by which a model is eval"
    ):
        dynamically_quantized(nn.Linear(2, 2))
