"""A GPT, from a hundred thousand parameters to tens of billions.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (pre-norm blocks, GELU,
residual projections initialised at 0.02 / sqrt(2 n_layer)).
Deviates: unless `tied` is set, the head is not tied to the embedding: a pipeline's first and last stage would each hold
it, and sum its gradient in every step.

Parameters, for a vocabulary of V tokens, a context of C, L layers of width w:

    V w + C w + L ((10 + 2 g) w^2 + (11 + 2 g) w) + 2 w, and the head's V w unless `tied`

where g = n_kv_head / n_head, which is 1 unless heads share keys and values.

Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints" (arXiv
2305.13245): `n_kv_head` groups of heads, each of which has its own queries, share the keys and values of their group.
With one group it is multi-query attention.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174): with `recompute` a block keeps
its input alone, [n, t, w], and computes the rest again for backward: a third more flops, and what one block keeps is
there for as long as backward is in it.
"""

from collections import OrderedDict
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le, Lt
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_divisor, need_tokens

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
Depth = Annotated[int, Ge(1), Le(4096)]
Width = Annotated[int, Ge(1), Le(2**20)]  # the entries of a layer stay countable in 64 bits
Probability = Annotated[float, Ge(0), Lt(1)]


class Embedding(nn.Module):
    """[n, t] int64 -> [n, t, width]: what the token is, plus where it stands."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token(tokens) + self.position(places))


class Attention(nn.Module):
    """Self-attention, [n, t, width] -> [n, t, width]; `causal`: no place looks at a later one.

    The rows of `qkv` go by group of heads, then the queries of its heads, its key, its value; the columns of `project`
    go by head. An even cut of either, into as many pieces as divide `n_kv_head`, is a set of whole groups.
    """

    by_group: ClassVar = ("qkv", "project")  # what strategy=tensor cuts into such pieces

    def __init__(self, width: int, n_head: int, n_kv_head: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.groups = n_kv_head
        self.head_width = width // n_head
        self.heads_a_group = n_head // n_kv_head
        self.causal = causal
        self.qkv = nn.Linear(width, width + 2 * n_kv_head * self.head_width)
        self.project = nn.Linear(width, width)
        self.attention_dropout = dropout
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.heads_a_group
        qkv = self.qkv(x).unflatten(-1, (-1, shared + 2, self.head_width))  # [n, t, group, shared + 2, head_width]
        parts = qkv.split((shared, 1, 1), dim=3)
        # each head has the key and value of its group: each [n, head, t, head_width]
        q, k, v = (part.expand(-1, -1, -1, shared, -1).flatten(2, 3).transpose(1, 2) for part in parts)
        dropout = self.attention_dropout if self.training else 0.0
        # softmax(q k^T / sqrt(head_width) + causal mask) v
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.dropout(self.project(mixed.transpose(1, 2).flatten(2)))


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); [n, t, width] -> [n, t, width]."""

    by_place: ClassVar = True  # but for its attention, it computes each of the t places from that place alone

    def __init__(
        self, width: int, n_head: int, n_kv_head: int, dropout: float, recompute: bool = False, causal: bool = True
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, n_head, n_kv_head, dropout, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                expand=nn.Linear(width, 4 * width),
                gelu=nn.GELU(),
                project=nn.Linear(4 * width, width),
                dropout=nn.Dropout(dropout),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        if not (self.recompute and self.training):
            return self._compute(x)
        output = checkpoint(self._compute, x, use_reentrant=False)
        assert isinstance(output, Tensor)
        return output

    def _compute(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Sequential):
    """[n, t] int64 -> [n, t, vocabulary], t up to the context.

    `vocabulary` and `context`: None takes the data's; more than the data have is allowed. `tied`: the head's matrix is
    the embedding's. `recompute`: keep only what enters each block. `n_kv_head`: keys and values; None is one a head.

    Raises ConfigError for data that are not tokens, for a vocabulary or context smaller than the data's, and where
    the heads do not divide the width, or keys and values the heads.
    """

    depth_knob = "n_layer"  # more of it makes more layers

    def __init__(
        self,
        spec: DataSpec,
        vocabulary: Count | None = None,
        context: Count | None = None,
        n_layer: Depth = 4,
        n_head: Count = 4,
        width: Width = 128,
        dropout: Probability = 0.0,
        tied: bool = False,
        recompute: bool = False,
        n_kv_head: Count | None = None,
    ) -> None:
        need_tokens("gpt", spec)
        vocabulary = _at_least("vocabulary", vocabulary, spec.classes, "tokens")
        context = _at_least("context", context, spec.input_shape[0], "tokens a window")
        if width % n_head:
            raise ConfigError(f"model.n_head={n_head} does not divide model.width={width}.")
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        need_divisor("n_kv_head", n_kv_head, n_head, f"model.n_head={n_head}")
        stages: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(vocabulary, context, width, dropout))
        for number in range(1, n_layer + 1):
            stages[f"block{number}"] = TransformerBlock(width, n_head, n_kv_head, dropout, recompute)
        stages["norm"] = nn.LayerNorm(width)
        stages["head"] = nn.Linear(width, vocabulary, bias=False)
        super().__init__(stages)
        initialise(self, n_layer)
        if tied:
            self.get_submodule("head").weight = self.get_submodule("embedding.token").weight


def initialise(model: nn.Module, n_layer: int) -> None:
    """Initialises like GPT-2: normal with deviation 0.02, biases 0, norms' weights 1."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" not in name:
            # Each of the 2 n_layer projections adds to the residual stream: keep its variance.
            shrink = (2 * n_layer) ** -0.5 if "project" in name else 1.0
            nn.init.normal_(parameter, std=0.02 * shrink)


def _at_least(knob: str, chosen: int | None, needed: int, what: str) -> int:
    """`chosen`, or what the data need. Raises ConfigError when it is less."""
    if chosen is not None and chosen < needed:
        raise ConfigError(f"model.{knob}={chosen}: these data have {needed} {what}; null takes just these.")
    return needed if chosen is None else chosen
