"""Plain training on digits, for tests of models."""

import torch
from torch import nn

from paceline.batches import lone
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses.cross_entropy import cross_entropy


def trained(model: nn.Module, steps: int, batch: int, lr: float) -> list[float]:
    """By Adam, on batches drawn with replacement; returns the loss of each step."""
    train, _ = Digits().load()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for picked in torch.randint(len(train), (steps, batch)):
        optimizer.zero_grad()
        loss = cross_entropy(model(lone(train.samples)[picked]), train.targets[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
