"""Models in Hugging Face's style, which return a dict or an object with logits and their own loss; data for them."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

WORDS, LENGTH, SAMPLES = 11, 6, 60


@dataclass
class Returned:
    loss: Tensor | None
    logits: Tensor


class Tags(nn.Module):
    """[n, length] words -> [n, length, 2]. `shifts`: it predicts labels [n, length, words] from the words before."""

    def __init__(
        self, returns: Literal["dict", "object", "nothing", "detached", "each", "one"] = "object", shifts: bool = False
    ) -> None:
        super().__init__()
        self.returns, self.shifts = returns, shifts
        self.embedding = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS if shifts else 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Returned | dict[str, Tensor | None]:
        hidden = self.embedding(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask[..., None]
        logits = self.head(hidden.tanh())
        loss = None
        if labels is not None:
            scores, wanted = (logits[:, :-1], labels[:, 1:]) if self.shifts else (logits, labels)
            loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-100)
            each = loss.expand(3) if self.returns == "each" else loss
            loss = {"detached": loss.detach(), "each": each, "one": loss[None]}.get(self.returns, loss)
        if self.returns == "nothing":
            return {"scores": logits}
        return {"loss": loss, "logits": logits} if self.returns == "dict" else Returned(loss, logits)


class Prices(nn.Module):
    """[n, 4] -> [n, 1], a regression."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor | None]:
        logits = self.layer(x)
        return {"loss": None if labels is None else F.mse_loss(logits[:, 0], labels), "logits": logits}


class Sentences(Dataset[dict[str, Tensor]]):
    """Dicts. `masks`: labels behind a sentence's end are -100. `knows`: it tells all its labels."""

    classes = ("even", "odd")

    def __init__(self, masks: bool = False, knows: bool = True, shifts: bool = False, train: bool = True) -> None:
        drawn = torch.Generator().manual_seed(int(train))
        self.words = torch.randint(0, WORDS, (SAMPLES if train else 20, LENGTH), generator=drawn)
        lengths = torch.randint(2, LENGTH + 1, (len(self.words),), generator=drawn)
        self.mask = (torch.arange(LENGTH) < lengths[:, None]) | torch.tensor(not masks)
        self.labels = (self.words if shifts else self.words % 2).masked_fill(~self.mask, -100)
        if shifts:
            self.classes = tuple(map(str, range(WORDS)))
        if knows:
            self.targets = self.labels

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[i], "attention_mask": self.mask[i].long(), "labels": self.labels[i]}


class Priced(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        return {"x": x, "label": x.sum()}


class Measured(Prices):
    """[n, 10] -> [n, 1], of several layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1))  # pyright: ignore
