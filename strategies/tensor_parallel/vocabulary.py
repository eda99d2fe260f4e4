"""An embedding and a head of which a worker has the rows of some tokens, and their cross-entropy.

Shoeybi et al. 2019, section 3: the vocabulary is cut into pieces V_1, ..., V_d, as even as can be. Worker i looks up
the tokens of V_i, has zeros for others, and an all-reduce gives all of them to all. Its head gives the logits f_j of
V_i, [n, |V_i|], and nobody gathers them. Of a prediction whose target is y,

    m = max_j f_j              an all-reduce of n maxima
    s = sum_j exp(f_j - m)     one of 2 n sums, with the next
    t = f_y - m                0 where y is in no piece of this worker
    loss = log s - t           the mean over predictions
    df_j = exp(f_j - m) / s - [j = y]     local

Deviation: pieces may be uneven by one token; Megatron pads the vocabulary.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..core.accumulation import weigher
from ..core.loss import Loss, is_mean_cross_entropy
from ..core.placements import Shard
from ..core.precision import like, widened
from .find import vocabulary_of
from .group import TensorGroup
from .layers import column


class VocabularyEmbedding(nn.Module):
    """Tokens [...] -> [..., width], of which the piece has the rows from `first` on."""

    placements: ClassVar = {"weight": Shard(0)}

    def __init__(self, weight: nn.Parameter, first: int, group: TensorGroup) -> None:
        super().__init__()
        self.weight, self.first, self.group = weight, first, group

    def forward(self, tokens: Tensor) -> Tensor:
        own = tokens - self.first
        elsewhere = (own < 0) | (own >= len(self.weight))
        rows = F.embedding(own.masked_fill(elsewhere, 0), self.weight)
        summed: Tensor = _Summed.apply(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group)
        return summed


class VocabularyHead(nn.Module):
    """[..., width], all of it, -> the logits [..., |V_i|] of the piece's tokens, from `first` on."""

    placements: ClassVar = {"weight": Shard(0), "bias": Shard(0)}

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, first: int, group: TensorGroup, sequence: bool):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.first, self.group, self.sequence = first, group, sequence

    def forward(self, x: Tensor) -> Tensor:
        return column(x, self.weight, self.bias, self.group, self.sequence)


class _Summed(torch.autograd.Function):
    """A sum over the pieces, whose gradient is everyone's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.mark_dirty(x)
        return group.sum(x, "activations")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def is_cut(wanted: bool | None, model: nn.Module, loss: Loss, or_else: str = "") -> bool:
    """Tells whether the vocabulary of `model` is partitioned; None: if the loss is the mean cross-entropy.

    Raises `ConfigError` if it is wanted and there is none. `or_else`: another remedy, for the error's text.
    """
    found = vocabulary_of(model)
    if wanted and not found:
        raise ConfigError(
            f"strategy.vocabulary=true: {type(model).__name__} does not end in a linear layer with as many outputs "
            f"as an embedding has rows. Choose strategy.vocabulary=false{or_else}."
        )
    return wanted if wanted is not None else bool(found) and is_mean_cross_entropy(loss)


def head_of(part: nn.Module) -> VocabularyHead | None:
    return next((layer for layer in part.modules() if isinstance(layer, VocabularyHead)), None)


def loss_over(part: nn.Module, loss: Loss) -> Loss:
    """The loss of what `part` puts out: `loss`, or where its head is cut, the same of logits in pieces.

    Raises `ConfigError` where the head is cut and `loss` is no mean cross-entropy.
    """
    if (head := head_of(part)) is None:
        return loss
    if not is_mean_cross_entropy(loss):
        raise ConfigError(
            "strategy.vocabulary=true: the head's outputs can be cut for the mean cross-entropy alone, "
            "task=cross_entropy. Choose strategy.vocabulary=false, and leave the head out of strategy.plan."
        )

    weigh = weigher(loss)

    def of_pieces(outputs: Tensor, targets: Tensor) -> Tensor:
        return weigh(cross_entropy(outputs.flatten(0, -2), targets.flatten(), head.first, head.group))

    return like(loss, of_pieces)


def cross_entropy(logits: Tensor, targets: Tensor, first: int, group: TensorGroup) -> Tensor:
    """[n, |V_i|] on each worker, of the classes from `first` on, and [n] -> [], the same on all."""
    loss: Tensor = _CrossEntropy.apply(widened(logits), targets, first, group)
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, group: TensorGroup) -> Tensor:
        own = (targets - first).unsqueeze(1)  # [n, 1]
        elsewhere = (own < 0) | (own >= logits.shape[1])
        own = own.masked_fill(elsewhere, 0)
        m = group.largest(logits.amax(dim=1, keepdim=True), "loss")
        e = logits - m
        t = e.gather(1, own).masked_fill(elsewhere, 0.0)
        e.exp_()
        s, t = group.sum(torch.stack((e.sum(1, keepdim=True), t)), "loss").unbind()
        ctx.save_for_backward(e.div_(s), own, elsewhere)  # the softmax, of the piece
        return (s.log() - t).mean()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, own, elsewhere = ctx.saved_tensors
        each = grad_outputs[0] / len(softmax)
        # softmax_j - [j = y], as a share of the mean
        gradient = softmax * each
        ones = each.expand(own.shape).masked_fill(elsewhere, 0.0)
        return gradient.scatter_add_(1, own, -ones), None, None, None
