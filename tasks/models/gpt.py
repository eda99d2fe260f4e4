"""A GPT, from a hundred thousand parameters to hundreds of billions, and Llama's layers.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (pre-norm blocks, GELU,
residual projections initialised at 0.02 / sqrt(2 n_layer)).
Deviates: unless `tied` is set, the head is not tied to the embedding: a pipeline's first and last stage would each hold
it, and sum its gradient in every step.

Parameters, for a vocabulary of V tokens, a context of C, L layers of width w:

    V w + C w + L ((10 + 2 g) w^2 + (11 + 2 g) w) + 2 w, and the head's V w unless `tied`

where g = n_kv_head / n_head, which is 1 unless heads share keys and values. As Llama has it, with rotary positions,
RMSNorm, a gated feed-forward layer of width f, and no biases:

    V w + L ((2 + 2 g) w^2 + 3 w f + 2 w) + w, and the head's V w unless `tied`

Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints" (arXiv
2305.13245): `n_kv_head` groups of heads, each of which has its own queries, share the keys and values of their group.
With one group it is multi-query attention.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models" (arXiv 2302.13971), section 2.2, has the
layers of `gated`, `rms_norm` and `rotary`:

    gated       z = (silu(x G) * (x U)) P    SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer", 2002.05202)
    rms_norm    y = x / sqrt(mean(x^2) + 1e-5) * g    (Zhang and Sennrich 2019, arXiv 1910.07467)
    rotary      entries i and i + d/2 of a query or key of width d, at place p, turn by the angle p base^(-2i/d)
                (Su et al. 2021, "RoFormer", arXiv 2104.09864)

With `experts`, each feed-forward layer is a mixture of them (mixture.py), `active` of which compute a place: E experts
have E (2 or 3) w f entries in place of one's, and their router w E.

Deviates from Llama 3.1: angles are not scaled for contexts of more than 8,192 tokens, which changes no size.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174): with `recompute` a block keeps
its input alone, [n, t, w], and computes the rest again for backward: a third more flops, and what one block keeps is
there for as long as backward is in it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...conf.errors import ConfigError
from ..base import DataSpec
from .checks import need_divisor, need_tokens
from .mixture import MixtureOfExperts

Count = Annotated[int, Ge(1), Le(2**31 - 1)]
Depth = Annotated[int, Ge(1), Le(4096)]
Width = Annotated[int, Ge(1), Le(2**20)]  # the entries of a layer stay countable in 64 bits
Probability = Annotated[float, Ge(0), Lt(1)]


class Embedding(nn.Module):
    """[n, t] int64 -> [n, t, width]: what the token is, plus where it stands, unless `context` is None."""

    def __init__(self, vocabulary: int, context: int | None, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = None if context is None else nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.token(tokens)
        if self.position is not None:
            embedded = embedded + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(embedded)


@dataclass(frozen=True)
class BlockKind:
    """The parts of a block beside its widths. The defaults are GPT-2's.

    Args:
        ffn_width: of the feed-forward layer; None is 4 times the width.
        gated: the feed-forward layer is a SwiGLU.
        rms_norm: norms are RMSNorm, not LayerNorm.
        rotary: the base of rotary positions; None leaves queries and keys as they are.
        bias: linear layers have biases.
        experts: feed-forward layers, `active` of which compute a place; None is one that computes all.
    """

    ffn_width: int | None = None
    gated: bool = False
    rms_norm: bool = False
    rotary: float | None = None
    bias: bool = True
    experts: int | None = None
    active: int = 1

    def norm(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=1e-5) if self.rms_norm else nn.LayerNorm(width)

    def feed_forward(self, width: int, dropout: float) -> nn.Module:
        ffn_width = self.ffn_width or 4 * width
        if self.experts is not None:
            return MixtureOfExperts(width, ffn_width, self.experts, self.active, self.gated, dropout)
        if self.gated:
            return GatedFeedForward(width, ffn_width, dropout, self.bias)
        return nn.Sequential(
            OrderedDict(
                expand=nn.Linear(width, ffn_width, bias=self.bias),
                gelu=nn.GELU(),
                project=nn.Linear(ffn_width, width, bias=self.bias),
                dropout=nn.Dropout(dropout),
            )
        )


GPT_2 = BlockKind()


def rotated(x: Tensor, base: float) -> Tensor:
    """[n, t, ..., d] -> the same, with entries i and i + d/2 at place p turned by the angle p base^(-2i/d)."""
    half, dtype = x.shape[-1] // 2, torch.promote_types(x.dtype, torch.float32)
    frequencies = base ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    places = torch.arange(x.shape[1], device=x.device).view(-1, *[1] * (x.dim() - 2))
    angles = places * frequencies  # [t, ..., d/2]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.split(half, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Self-attention, [n, t, width] -> [n, t, width]; `causal`: no place looks at a later one.

    The rows of `qkv` go by group of heads, then the queries of its heads, its key, its value; the columns of `project`
    go by head. An even cut of either, into as many pieces as divide `n_kv_head`, is a set of whole groups.
    """

    by_group: ClassVar = ("qkv", "project")  # what strategy=tensor cuts into such pieces
    groups_are: ClassVar = ("keys and values a place", "model.n_kv_head")

    def __init__(
        self, width: int, n_head: int, n_kv_head: int, dropout: float, causal: bool, kind: BlockKind = GPT_2
    ) -> None:
        super().__init__()
        self.groups = n_kv_head
        self.head_width = width // n_head
        self.heads_a_group = n_head // n_kv_head
        self.causal = causal
        self.rotary = kind.rotary
        self.qkv = nn.Linear(width, width + 2 * n_kv_head * self.head_width, bias=kind.bias)
        self.project = nn.Linear(width, width, bias=kind.bias)
        self.attention_dropout = dropout
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.heads_a_group
        qkv = self.qkv(x).unflatten(-1, (-1, shared + 2, self.head_width))  # [n, t, group, shared + 2, head_width]
        if self.rotary is not None:
            turning, values = qkv.split((shared + 1, 1), dim=3)
            qkv = torch.cat((rotated(turning, self.rotary), values), dim=3)
        parts = qkv.split((shared, 1, 1), dim=3)
        # each head has the key and value of its group: each [n, head, t, head_width]
        q, k, v = (part.expand(-1, -1, -1, shared, -1).flatten(2, 3).transpose(1, 2) for part in parts)
        dropout = self.attention_dropout if self.training else 0.0
        # softmax(q k^T / sqrt(head_width) + causal mask) v
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.dropout(self.project(mixed.transpose(1, 2).flatten(2)))


class GatedFeedForward(nn.Module):
    """(silu(x G) * (x U)) P, [..., width] -> [..., width].

    The rows of `expand` go by unit, its gate's and its own; the columns of `project` go by unit. An even cut of either
    is a set of whole units.
    """

    by_group: ClassVar = ("expand", "project")
    groups_are: ClassVar = ("units of the feed-forward layer", "model.ffn_width")

    def __init__(self, width: int, ffn_width: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.groups = ffn_width
        self.expand = nn.Linear(width, 2 * ffn_width, bias=bias)
        self.project = nn.Linear(ffn_width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.expand(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.dropout(self.project(F.silu(gate) * up))


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); [n, t, width] -> [n, t, width]."""

    by_place: ClassVar = True  # but for its attention, it computes each of the t places from that place alone

    def __init__(
        self,
        width: int,
        n_head: int,
        n_kv_head: int,
        dropout: float,
        recompute: bool = False,
        causal: bool = True,
        kind: BlockKind = GPT_2,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.norm1 = kind.norm(width)
        self.attention = Attention(width, n_head, n_kv_head, dropout, causal, kind)
        self.norm2 = kind.norm(width)
        self.mlp = kind.feed_forward(width, dropout)

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
    The rest: see `BlockKind`. With `rotary` no positions are learned.

    `experts`: of a feed-forward layer, `active` of which compute a place; None is one layer that computes all of them.

    Raises ConfigError for data that are not tokens, for a vocabulary or context smaller than the data's, where the
    heads do not divide the width, or keys and values the heads, for rotary positions of heads of odd width, and for
    more active experts than there are (one without `experts`).
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
        ffn_width: Width | None = None,
        gated: bool = False,
        rms_norm: bool = False,
        rotary: Annotated[float, Gt(1)] | None = None,
        bias: bool = True,
        experts: Count | None = None,
        active: Count = 1,
    ) -> None:
        need_tokens("gpt", spec)
        vocabulary = _at_least("vocabulary", vocabulary, spec.classes, "tokens")
        context = _at_least("context", context, spec.input_shape[0], "tokens a window")
        if width % n_head:
            raise ConfigError(f"model.n_head={n_head} does not divide model.width={width}.")
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        need_divisor("n_kv_head", n_kv_head, n_head, f"model.n_head={n_head}")
        if rotary is not None and width // n_head % 2:
            raise ConfigError(
                f"model.rotary={rotary:g}: heads of width {width // n_head} have no pairs of entries to turn. Choose "
                "another model.n_head, so that model.width / model.n_head is even, or model.rotary=null."
            )
        if active > (experts or 1):
            raise ConfigError(
                f"model.active={active}: must be at most model.experts={experts or 'null'}. Choose more experts, or "
                f"model.active={experts or 1}."
            )
        kind = BlockKind(ffn_width, gated, rms_norm, rotary, bias, experts, active)
        learned = context if rotary is None else None
        stages: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(vocabulary, learned, width, dropout))
        for number in range(1, n_layer + 1):
            stages[f"block{number}"] = TransformerBlock(width, n_head, n_kv_head, dropout, recompute, kind=kind)
        stages["norm"] = kind.norm(width)
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
        raise ConfigError(
            f"model.{knob}={chosen}: these data have {needed} {what}; model.{knob}=null takes just these, "
            f"and data=tokens data.{knob}={chosen} has no more than the model."
        )
    return needed if chosen is None else chosen
