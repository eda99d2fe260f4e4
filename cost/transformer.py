"""A transformer's entries, operations and kernels, from its shape alone.

    flops of a forward and backward pass, all layers, with recomputation   96 B s l h^2 (1 + s/6h + V/16lh)
    without                                                                72 B s l h^2 (1 + s/6h + V/12lh)

(Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
2104.04473, equation 3 and its appendix) for a feed-forward layer of width 4 h and as many key and value heads as heads;
`pass_flops` counts other shapes alike. B: samples, s: tokens of each, l: layers, h: width, V: vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Factors:
    """All matrices are frozen, and beside each a product of two thin ones is trained (LoRA, Hu et al. 2021)."""

    rank: int
    narrow: bool  # the frozen matrices are held in half precision


@dataclass(frozen=True)
class Transformer:
    """Heads that are less than `heads` in number for keys and values: grouped queries. `gated`: SwiGLU and its like."""

    layers: int
    width: int
    heads: int
    context: int  # tokens of a sample
    vocabulary: int
    kv_heads: int | None = None  # None: as many as heads
    inner: int | None = None  # width of the feed-forward layer; None: 4 times the width
    gated: bool = False
    tied: bool = True  # embedding and head are one matrix
    positions: bool = True  # learned ones
    causal: bool = True
    dropout: bool = True
    factors: Factors | None = None  # None: all is trained

    @property
    def feed_forward(self) -> int:
        return self.inner or 4 * self.width

    @property
    def kv_width(self) -> float:
        return self.width * (self.kv_heads or self.heads) / self.heads

    def layer_entries(self) -> float:
        """Returns the entries of one layer's matrices; biases and norms are less than a thousandth of it."""
        matrices = 3 if self.gated else 2
        return 2 * self.width**2 + 2 * self.width * self.kv_width + matrices * self.width * self.feed_forward

    def factor_entries(self) -> float:
        """Returns the entries of the factors of all layers and of the head."""
        if self.factors is None:
            return 0.0
        sides = [(self.width, self.width + 2 * self.kv_width), (self.width, self.width)]
        sides += [(self.width, self.feed_forward * (2 if self.gated else 1)), (self.feed_forward, self.width)]
        return self.factors.rank * (self.layers * sum(a + b for a, b in sides) + self.width + self.vocabulary)

    def entries(self) -> float:
        """Parameters in all, factors aside."""
        ends = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * self.layer_entries() + ends + (self.context * self.width if self.positions else 0)

    def forward_flops(self, samples: float) -> tuple[float, float]:
        """Floating-point operations of a forward pass: of all layers, and of the head."""
        tokens = samples * self.context
        attention = 4 * tokens * self.context * self.width
        return self.layers * (2 * tokens * self.layer_entries() + attention), 2 * tokens * self.width * self.vocabulary

    def pass_flops(self, samples: float, recomputed: bool) -> float:
        """Returns the flops of a forward and backward pass of `samples`; backward is twice forward, or once where
        matrices are frozen, factors aside. `recomputed`: layers once more.
        """
        layers, head = self.forward_flops(samples)
        passes = 3 if self.factors is None else 2
        return layers * (passes + recomputed) + head * passes


@dataclass(frozen=True)
class Product:
    """`count` products of an (m, k) by a (k, n) matrix, in one kernel."""

    m: float
    n: float
    k: float
    count: float = 1
    of_scores: bool = False  # attention's scores, or their product with the values

    @property
    def flops(self) -> float:
        return 2 * self.m * self.n * self.k * self.count


def products(of: Transformer, samples: float, tensor: int = 1, fused: bool = False) -> Iterator[Product]:
    """A layer's forward products on one of `tensor` devices (Shoeybi et al. 2019, section 3).

    `fused`: attention in one kernel that never writes its scores (Dao et al. 2022) and leaves out what a causal mask
    hides: half of both products. Without it the products are whole, as libraries compute them.
    """
    tokens, width, head = samples * of.context, of.width, of.width / of.heads
    heads = samples * of.heads / tensor * (0.5 if fused and of.causal else 1)
    yield Product(tokens, (width + 2 * of.kv_width) / tensor, width)
    yield Product(of.context, of.context, head, heads, of_scores=True)
    yield Product(of.context, head, of.context, heads, of_scores=True)
    yield Product(tokens, width, width / tensor)
    yield Product(tokens, of.feed_forward * (2 if of.gated else 1) / tensor, width)
    yield Product(tokens, width, of.feed_forward / tensor)


def streamed_entries(of: Transformer, samples: float, tensor: int = 1) -> float:
    """Entries that a layer's other kernels read and write in a forward pass, those of scores aside.

    Norms: 2 each of two; residual and dropout: 3 each of two; activation: 2, or 5 where gated (its function, then the
    product); splitting and joining heads: 2 of queries, keys, values and of the result; rotating queries and keys,
    where positions are not learned: 4.
    """
    tokens = samples * of.context
    whole = tokens * of.width * (2 * 2 + 2 * 3)
    heads = 4 * (of.width + of.kv_width) + (0 if of.positions else 4 * (of.width + of.kv_width))
    return whole + tokens * (of.feed_forward * (5 if of.gated else 2) + heads) / tensor


def score_entries(of: Transformer, samples: float, tensor: int = 1) -> float:
    """Entries that softmax and the dropout of scores read and write: 4 of all scores."""
    return 4 * samples * of.heads / tensor * of.context**2
