"""Models of columns: an embedding of whole numbers, alone or beside measurements."""

import torch
from torch import Tensor, nn


class OfIds(nn.Module):
    """[n, columns] whole numbers below 40 -> [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


class OfBoth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.streets, self.head = nn.Embedding(40, 4), nn.Linear(5, 2)

    def forward(self, numbers: Tensor, street: Tensor) -> Tensor:
        return self.head(torch.cat([numbers, self.streets(street)], dim=1))
