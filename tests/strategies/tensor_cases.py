"""Small GPTs whose vocabulary no degree divides, and tokens to train them on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from oracles import Case, momentum
from torch import Tensor, nn

from paceline.tasks.base import DataSpec
from paceline.tasks.losses import CrossEntropy
from paceline.tasks.models.gpt import GPT

VOCABULARY, PLACES, WIDTH = 13, 4, 8
LLAMA = {"gated": True, "ffn_width": 12, "rms_norm": True, "rotary": 50.0, "bias": False}
SPEC = DataSpec((PLACES,), torch.int64, (PLACES,), VOCABULARY)


def gpt(dtype: torch.dtype = torch.float64, **knobs: object) -> nn.Sequential:
    """Two blocks of four heads."""
    return GPT(SPEC, **{"n_layer": 2, "n_head": 4, "width": WIDTH, **knobs}).to(dtype)


def make(dtype: torch.dtype = torch.float64, **knobs: object) -> Callable[[], nn.Sequential]:
    return partial(gpt, dtype, **knobs)


@dataclass(frozen=True)
class Tokens(Case):
    """The samples are windows of tokens, with the task's own loss."""

    model: Callable[[], nn.Module] = gpt
    loss: Callable[[Tensor, Tensor], Tensor] = CrossEntropy().loss

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2000 + step)
        windows = torch.randint(VOCABULARY, (sum(self.sizes[step]), PLACES + 1), generator=generator)
        return windows[:, :-1], windows[:, 1:]


def tokens(steps: int = 3, each: tuple[int, ...] = (3,), **knobs: Any) -> Tokens:
    return Tokens([list(each)] * steps, model=make(**knobs), optimizer=momentum)
