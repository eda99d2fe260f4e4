"""A transformer's entries, operations and kernels, from its shape alone.

    flops of a forward and backward pass, all layers, with recomputation   96 B s l h^2 (1 + s/6h + V/16lh)
    without                                                                72 B s l h^2 (1 + s/6h + V/12lh)

(Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
2104.04473, equation 3 and its appendix) for a feed-forward layer of width 4 h and as many key and value heads as heads;
`pass_flops` counts other shapes alike. B: samples, s: tokens of each, l: layers, h: width, V: vocabulary.

A mixture of experts (Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer", arXiv 1701.06538) has E feed-forward layers of width f in place of one, and a matrix of h E entries that chooses
k of them for each token; `shared` ones compute every token. A token's flops are those of its k + shared experts. Tokens
are taken to be spread evenly over experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Factors:
    """All matrices are frozen, and beside some a product of two thin ones is trained (LoRA, Hu et al. 2021)."""

    rank: int
    narrow: bool  # the frozen matrices are held in half precision
    only_queries: bool = False  # beside the one of queries, keys and values alone; else beside every matrix


@dataclass(frozen=True)
class Transformer:
    """Heads that are less than `heads` in number for keys and values: grouped queries. `gated`: SwiGLU and its like.

    Args:
        head_width: of a head; None is the share of one head in `width`.
        experts: in a layer, `active` of which compute a token; 0: one feed-forward layer computes all tokens.
        shared: experts of the same width that compute every token.
        text: tokens of each of the texts that fill a sample, where scores are within a text; None: a sample is one.
    """

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
    head_width: int | None = None
    experts: int = 0
    active: int = 1
    shared: int = 0
    factors: Factors | None = None  # None: all is trained
    text: int | None = None

    @property
    def scored(self) -> int:
        """Tokens that a token has scores with, before a causal mask."""
        return self.text or self.context

    @property
    def feed_forward(self) -> int:
        return self.inner or 4 * self.width

    @property
    def query_width(self) -> float:
        """Returns the width of all heads' queries together."""
        return self.width if self.head_width is None else self.heads * self.head_width

    @property
    def kv_width(self) -> float:
        return self.query_width * (self.kv_heads or self.heads) / self.heads

    @property
    def computing(self) -> int:
        """Feed-forward layers that compute one token."""
        return self.active + self.shared if self.experts else 1

    def layer_entries(self) -> float:
        """Returns the entries of one layer's matrices; biases and norms are less than a thousandth of it."""
        return self._layer(self.experts + self.shared if self.experts else 1)

    def active_layer_entries(self) -> float:
        """Returns the entries of one layer's matrices that compute one token."""
        return self._layer(self.computing)

    def _layer(self, feed_forwards: int) -> float:
        attention = 2 * self.width * (self.query_width + self.kv_width)
        return attention + feed_forwards * self._feed_forward_entries() + self.width * self.experts

    def _feed_forward_entries(self) -> float:
        return (3 if self.gated else 2) * self.width * self.feed_forward

    def expert_entries(self) -> float:
        """Returns the entries of one layer's experts, shared ones aside, which each device may have some of."""
        return self.experts * self._feed_forward_entries()

    def factor_entries(self) -> float:
        """Returns the entries of the factors of all layers and of the head."""
        if self.factors is None:
            return 0.0
        sides = [(self.width, self.query_width + 2 * self.kv_width)]
        if self.factors.only_queries:
            return self.factors.rank * self.layers * sum(sides[0])
        sides += [(self.query_width, self.width)]
        sides += [(self.width, self.feed_forward * (2 if self.gated else 1)), (self.feed_forward, self.width)]
        return self.factors.rank * (self.layers * sum(a + b for a, b in sides) + self.width + self.vocabulary)

    def entries(self) -> float:
        """Parameters in all, factors aside."""
        return self._in_all(self.layer_entries())

    def active_entries(self) -> float:
        """Parameters that compute one token."""
        return self._in_all(self.active_layer_entries())

    def _in_all(self, layer: float) -> float:
        ends = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * layer + ends + (self.context * self.width if self.positions else 0)

    def forward_flops(self, samples: float) -> tuple[float, float]:
        """Floating-point operations of a forward pass: of all layers, and of the head."""
        tokens = samples * self.context
        layer = 2 * tokens * self.active_layer_entries() + 4 * tokens * self.scored * self.query_width
        return self.layers * layer, 2 * tokens * self.width * self.vocabulary

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


def products(
    of: Transformer, samples: float, tensor: int = 1, fused: bool = False, experts: int = 1
) -> Iterator[Product]:
    """A layer's forward products on one of `tensor` devices (Shoeybi et al. 2019, section 3).

    `experts`: devices that share a layer's experts, whole ones on each; 1: each expert is cut over `tensor` devices.

    `fused`: attention in one kernel that never writes its scores (Dao et al. 2022) and leaves out what a causal mask
    hides: half of both products. Without it the products are whole, as libraries compute them.
    """
    tokens, width, head = samples * of.context, of.width, of.query_width / of.heads
    heads = samples * of.context / of.scored * of.heads / tensor * (0.5 if fused and of.causal else 1)
    yield Product(tokens, (of.query_width + 2 * of.kv_width) / tensor, width)
    yield Product(of.scored, of.scored, head, heads, of_scores=True)
    yield Product(of.scored, head, of.scored, heads, of_scores=True)
    yield Product(tokens, width, of.query_width / tensor)
    up = of.feed_forward * (2 if of.gated else 1)
    if whole := of.shared if of.experts else 1:
        yield Product(tokens, whole * up / tensor, width)
        yield Product(tokens, width, whole * of.feed_forward / tensor)
    if of.experts:
        yield Product(tokens / tensor, of.experts, width)
        rows = tokens * of.active / of.experts  # of one expert, from one device's samples
        if experts > 1:
            rows, tensor = rows * experts / tensor, 1
        yield Product(rows, up / tensor, width, of.experts / experts)
        yield Product(rows, width, of.feed_forward / tensor, of.experts / experts)


def streamed_entries(
    of: Transformer,
    samples: float,
    tensor: int = 1,
    experts: int = 1,
    norm: int = 2,
    residual: int = 3,
    activation: int = 2,
) -> float:
    """Entries that a layer's other kernels read and write in a forward pass, those of scores aside.

    Norms: `norm` each of two; residual and dropout: `residual` each of two; activation: `activation`, or 5 where gated
    (its function, then the product); splitting and joining heads: 2 of queries, keys, values and of the result;
    rotating queries and keys, where positions are not learned: 4; sorting tokens by expert, and back: 2 each for each
    active expert, and once more by the experts of a device where devices share them.
    """
    tokens = samples * of.context
    whole = tokens * of.width * 2 * (norm + residual)
    heads = (4 if of.positions else 8) * (of.query_width + of.kv_width)
    sorted_ = (4 if experts == 1 else 8) * of.active * of.width if of.experts else 0
    inner = (5 if of.gated else activation) * of.computing * of.feed_forward
    return whole + tokens * (inner + heads + sorted_) / tensor


def score_entries(of: Transformer, samples: float, tensor: int = 1, each: int = 4) -> float:
    """Entries that softmax and the dropout of scores read and write: `each` of all scores."""
    return each * samples * of.heads / tensor * of.context * of.scored
