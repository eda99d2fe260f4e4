"""A mixture of experts: feed-forward layers of which a few compute each place.

Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer" (arXiv
1701.06538). Of E experts, each place x is computed by the k of the largest p:

    y = sum over these k of p_i expert_i(x),      p = softmax(x R),  R [w, E]

Deviations: p are not divided by the sum of these k, so that R learns with k = 1, too (Fedus et al. 2022, "Switch
Transformers", arXiv 2101.03961, equations 1 and 2). There is no noise and no loss that balances experts: each expert
computes all places that choose it, none is dropped, and some experts may get few. Experts have no biases.

Rows are sorted by expert, and each expert multiplies its own: n k rows in all, for n places. Where tensors have no
values, each has as many rows.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...compat.dispatch import has_values


class MixtureOfExperts(nn.Module):
    """[..., width] -> [..., width]. `gated`: experts are SwiGLUs, whose gates are the first half of `expand`."""

    by_values: ClassVar = True  # the shapes of its passes follow from values, which torch's vmap refuses
    uncut: ClassVar = (  # what strategy=tensor says of it
        "experts (model.experts) are not cut over tensor workers. "
        "Choose strategy=zero, torch_fsdp or pipeline, or model.experts=null."
    )

    def __init__(self, width: int, ffn_width: int, experts: int, active: int, gated: bool, dropout: float) -> None:
        super().__init__()
        self.active, self.gated = active, gated
        self.router = nn.Linear(width, experts, bias=False)
        self.expand = nn.Parameter(torch.empty(experts, width, (2 if gated else 1) * ffn_width))
        self.project = nn.Parameter(torch.empty(experts, ffn_width, width))
        self.dropout = nn.Dropout(dropout)

    @property
    def idle(self) -> int:
        """Returns the entries that do not compute a place."""
        experts = len(self.expand)
        return (self.expand.numel() + self.project.numel()) // experts * (experts - self.active)

    def forward(self, x: Tensor) -> Tensor:
        places = x.flatten(0, -2)  # [n, width]
        weights, chosen = self.router(places).softmax(-1).topk(self.active)  # [n, k]
        order = chosen.flatten().argsort(stable=True)  # n k rows, those of expert 0 first
        counts = chosen.flatten().bincount(minlength=len(self.expand)).tolist() if has_values(x) else None
        expanded = _by_expert(places[order // self.active], self.expand, counts)
        if self.gated:
            gate, up = expanded.chunk(2, -1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(expanded)
        answers = _by_expert(inner, self.project, counts)[order.argsort()].unflatten(0, chosen.shape)  # [n, k, width]
        return self.dropout((weights.unsqueeze(1) @ answers).view_as(x))


def idle_entries(model: nn.Module) -> int:
    """Returns the entries of a model's experts that do not compute a place."""
    return sum(each.idle for each in model.modules() if isinstance(each, MixtureOfExperts))


def _by_expert(rows: Tensor, matrices: Tensor, counts: list[int] | None) -> Tensor:
    """[n, a] by [E, a, b] -> [n, b]. The first counts[0] rows are expert 0's, and so on; None: each has as many."""
    if counts is not None:
        return torch.cat([own @ matrix for own, matrix in zip(rows.split(counts), matrices.unbind(), strict=True)])
    each = -(-len(rows) // len(matrices))
    padded = F.pad(rows, (0, 0, 0, each * len(matrices) - len(rows)))
    return (padded.unflatten(0, (-1, each)) @ matrices).flatten(0, 1)[: len(rows)]
