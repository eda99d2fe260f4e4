"""A mixture of experts against plain torch, place by place; what it keeps for backward; and refusals."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine.base import memory
from paceline.tasks.base import DataSpec
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.mixture import MixtureOfExperts, idle_entries

TEXT = DataSpec((12,), torch.int64, (12,), 256, None, None)
EXPERTS, WIDTH, FFN = 5, 6, 4


def mixture(active: int = 2, gated: bool = False, dtype: torch.dtype = torch.float64) -> MixtureOfExperts:
    torch.manual_seed(0)
    made = MixtureOfExperts(WIDTH, FFN, EXPERTS, active, gated, dropout=0.0).to(dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def in_plain_torch(of: MixtureOfExperts, places: Tensor) -> Tensor:
    """Every expert computes every place, and those that are not chosen have no weight."""
    p = (places @ of.router.weight.T).softmax(-1)
    least = p.sort(-1, descending=True).values[..., of.active - 1, None]
    answers = list[Tensor]()
    for expand, project in zip(of.expand, of.project, strict=True):
        inner = places @ expand
        inner = F.silu(inner[..., :FFN]) * inner[..., FFN:] if of.gated else F.gelu(inner)
        answers.append(inner @ project)
    chosen = torch.where(p >= least, p, 0.0)
    return (chosen[..., None] * torch.stack(answers, -2)).sum(-2)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("active", [1, 2, EXPERTS])
def test_outputs_and_gradients_are_those_of_all_experts_weighted_by_place(active: int, gated: bool) -> None:
    of, found = mixture(active, gated), list[list[Tensor]]()
    for forward in (of, lambda x: in_plain_torch(of, x)):
        of.zero_grad()
        x = torch.randn(3, 4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        output = forward(x)
        output.square().sum().backward()
        found.append([output, *(each.grad.clone() for each in (x, *of.parameters()) if each.grad is not None)])
    assert len(found[0]) == len(found[1]) == 5
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    assert found[0][2].abs().max() > 0, "the router learns"


def test_an_expert_that_no_place_chooses_has_a_gradient_of_zero() -> None:
    of = mixture()
    of(torch.randn(1, WIDTH, dtype=torch.float64)).sum().backward()
    assert of.expand.grad is not None
    assert of.expand.grad.flatten(1).abs().amax(1).count_nonzero() == of.active


@pytest.mark.parametrize("gated", [False, True])
def test_the_meta_device_keeps_as_many_bytes_as_real_tensors(gated: bool) -> None:
    kept = []
    for device in ("cpu", "meta"):
        of = mixture(gated=gated, dtype=torch.float32).to(device)
        with memory.activations() as account:
            output = of(torch.randn(2, 10, WIDTH, device=device, requires_grad=True))
        assert output.shape == (2, 10, WIDTH)
        kept.append(account.peak)
    assert kept[0] == kept[1] > 0


def test_rows_that_experts_cannot_share_evenly_pass_the_meta_device() -> None:
    of = mixture(dtype=torch.float32).to("meta")
    assert of(torch.randn(3, WIDTH, device="meta")).shape == (3, WIDTH)


def test_a_gpt_has_the_entries_of_all_experts_and_computes_with_the_active_ones() -> None:
    def entries(**knobs: Any) -> int:
        return sum(each.numel() for each in GPT(TEXT, n_layer=2, width=16, bias=False, **knobs).parameters())

    expert = 2 * 16 * 64
    assert entries(experts=8, active=2) - entries() == 2 * (7 * expert + 8 * 16)
    model = GPT(TEXT, n_layer=2, width=16, bias=False, experts=8, active=2)
    assert idle_entries(model) == 2 * 6 * expert


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        (
            {"experts": 2, "active": 3},
            "model.active=3: must be at most model.experts=2. Choose more experts, or model.active=2.",
        ),
        ({"active": 2}, "model.active=2: must be at most model.experts=null. Choose more experts, or model.active=1."),
    ],
)
def test_more_active_experts_than_there_are_are_refused(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPT(TEXT, **knobs)
    assert str(caught.value) == says
