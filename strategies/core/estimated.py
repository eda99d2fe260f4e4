"""Autocast on the meta device, where torch has none: plans, messages' sizes and flops are taken there.

It stands between Python and torch's functions, and casts what autocast would cast, by torch's own lists for the device
that is foreseen ("Automatic Mixed Precision package", torch.amp, op-specific behaviour). A context of torch's CPU
autocast switches it on, which activation checkpointing restores when it computes again.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...compat import checkpointing

HALVES = torch.bfloat16, torch.float16
NARROW: frozenset[Callable[..., Any]] = frozenset(
    (
        *(F.linear, F.bilinear, F.scaled_dot_product_attention, F.multi_head_attention_forward),
        *(torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_tbc),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.einsum, torch.tensordot),
        *(torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, torch.mv, Tensor.mv),
        *(torch.addmm, Tensor.addmm, torch.addbmm, Tensor.addbmm, torch.baddbmm, Tensor.baddbmm),
        *(torch.addmv, Tensor.addmv, torch.chain_matmul, torch.linalg.multi_dot),
    )
)
WIDE: frozenset[Callable[..., Any]] = frozenset(
    (
        *(F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div),
        *(F.binary_cross_entropy_with_logits, F.soft_margin_loss, F.multi_margin_loss, F.margin_ranking_loss),
        *(F.multilabel_margin_loss, F.hinge_embedding_loss, F.cosine_embedding_loss, F.triplet_margin_loss),
        *(F.poisson_nll_loss, F.ctc_loss, torch.prod, Tensor.prod, torch.cdist),
    )
)
WIDE_ON_CUDA: frozenset[Callable[..., Any]] = frozenset(
    (
        *(F.layer_norm, F.group_norm, torch.layer_norm, torch.group_norm, F.softmax, F.log_softmax, F.softplus),
        *(torch.softmax, Tensor.softmax, torch.log_softmax, Tensor.log_softmax, F.normalize, F.cosine_similarity),
        *(torch.exp, Tensor.exp, torch.log, Tensor.log, torch.pow, Tensor.pow, Tensor.__pow__),
        *(torch.rsqrt, Tensor.rsqrt, torch.sum, Tensor.sum, torch.norm, Tensor.norm, torch.cumsum, Tensor.cumsum),
    )
)


class Estimate(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._wide = WIDE | WIDE_ON_CUDA if device.type == "cuda" else WIDE

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward and args[0].is_meta:
            with self:  # what is computed again for it is cast, too
                return _backward(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cpu") if func in NARROW else torch.float32 if func in self._wide else None
        if dtype is not None and torch.is_autocast_enabled("cpu"):
            args = tuple(_cast(each, dtype) for each in args)
            kwargs = {name: _cast(each, dtype) for name, each in kwargs.items()}
        return func(*args, **kwargs)


def _backward(
    root: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Runs the backward pass of a graph on the meta device, with the signature of `Tensor.backward`. The graph is freed
    afterwards in any case.
    """
    checkpointing.backward(root, gradient, inputs or ())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_cast(each, dtype) for each in value)
    narrow = isinstance(value, Tensor) and value.is_meta and value.dtype in (torch.float32, *HALVES)
    return value.to(dtype) if narrow else value
