"""Models that are evaluated on a device that cannot hold them."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.compat.dispatch import TorchDispatchMode
from paceline.compat.trees import map_tensors
from paceline.engine.training import laid_out as under_test
from paceline.engine.training.laid_out import Fetching, laid_out
from paceline.strategies.core.cost import payload
from paceline.tasks.base import DataSpec
from paceline.tasks.models.alexnet import AlexNet
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.resnet import ResNet
from paceline.tasks.models.unet import UNet
from paceline.tasks.models.vit import ViT

CARD = torch.device("meta")  # so that no card is needed


class Mixed(nn.Module):
    """Reads weights in the ways that models do: through layers, directly, tied, as views, and by their device."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.recurrent = nn.LSTM(32, 32, batch_first=True)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(32)
        self.register_buffer("mask", torch.ones(8, 1), persistent=False)

    mask: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        entered = self.embedding(tokens)
        hidden, _ = self.recurrent(entered)
        hidden, _ = self.attention(hidden, hidden, hidden)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2) * self.mask[: hidden.shape[1]]
        shift = torch.zeros(1, device=self.embedding.weight.device)
        return (hidden + shift) @ self.embedding.weight.T


class Counting(Fetching):
    """Counts the bytes of what it fetched that are still there."""

    there = most = 0

    def _fetched(self, tensor: Tensor) -> Tensor:
        found = super()._fetched(tensor)
        if found is not tensor:
            self.there += payload([found])
            self.most = max(self.most, self.there)
            weakref.finalize(found, self._gone, payload([found]))
        return found

    def _gone(self, size: int) -> None:
        self.there -= size


class Together(TorchDispatchMode):
    """Holds each operation to tensors of one device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found: set[str] = set()
        map_tensors(lambda tensor: found.add(tensor.device.type), (args, kwargs))
        assert len(found) < 2, f"{func}: {', '.join(sorted(found))}"
        return func(*args, **(kwargs or {}))


def tokens() -> Tensor:
    return torch.zeros(2, 8, dtype=torch.long, device=CARD)


def cases() -> Iterator[tuple[nn.Module, Tensor]]:
    text = DataSpec((8,), torch.int64, (8,), 50)
    yield GPT(text, n_layer=2, n_head=2, width=32), tokens()
    yield GPT(text, n_layer=2, n_head=2, width=32, tied=True), tokens()
    for make in (AlexNet, CNN, ResNet, ViT):
        yield make(DataSpec((3, 32, 32), torch.float32, (), 10)), torch.zeros(2, 3, 32, 32, device=CARD)
    yield UNet(DataSpec((3, 32, 32), torch.float32, (32, 32), 10)), torch.zeros(2, 3, 32, 32, device=CARD)
    yield Mixed(), tokens()


def test_weights_on_the_host_compute_on_the_card() -> None:
    with torch.no_grad():
        for model, inputs in cases():
            model.eval()
            with pytest.raises(AssertionError, match="cpu, meta"), Together():
                model(inputs)
            with Together(), Counting(model, CARD) as fetching:
                outputs = model(inputs)
            assert outputs.device == CARD, type(model)
            assert {weight.device.type for weight in model.parameters()} == {"cpu"}
            assert fetching.there == 0, "nothing stays"


def test_one_operation_s_weights_are_there_at_a_time() -> None:
    with torch.no_grad():
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10)))
        with Counting(model, CARD) as fetching:
            model(torch.zeros(1, 64, device=CARD))
        assert fetching.most == payload([*model[0].parameters()])


def test_a_model_that_the_card_has_no_room_for_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(64, 64, bias=False)
    size = payload([*model.parameters()])
    for free, room in ((2 * size, True), (2 * size - 1, False)):
        monkeypatch.setattr(under_test, "free", lambda _, free=free: free)
        assert under_test.has_room(model, torch.device("cuda")) is room
    monkeypatch.setattr(under_test, "has_room", lambda *_: False)
    with laid_out(model, CARD):
        assert model(torch.zeros(1, 64, device=CARD)).device == CARD
    assert model.weight.device.type == "cpu"
