"""Muon for matrices and AdamW for all else, as one optimizer (Jordan et al. 2024, "Muon: An optimizer for hidden layers
in neural networks", kellerjordan.github.io/posts/muon; Loshchilov and Hutter 2019 for AdamW).

For each weight X, [m, n], that is a matrix, with its gradient G:

    B <- mu B + (1 - mu) G
    O = NS((1 - mu) G + mu B)               with Nesterov's look ahead; without it NS(B)
    X <- (1 - eta lambda) X - eta s O       s = sqrt(max(1, m / n)), or 0.2 sqrt(max(m, n)), which goes with AdamW's eta

NS is some steps of a Newton-Schulz iteration in bfloat16, which comes near to the polar factor U V^T of U S V^T. Both
steps are torch's own (torch.optim.Muon, torch.optim.AdamW), bit for bit.

Deviation: the paper leaves embeddings and the last layer to AdamW; here a parameter of two dimensions is a matrix,
whatever layer has it. Parameters of any other number of dimensions (biases, norms, convolutions) are AdamW's.

O depends on the whole matrix: pieces of one cannot be stepped by themselves (exchange/elementwise.py).
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import nn
from torch.optim import Optimizer

Rate = Annotated[float, Ge(0)]
Decay = Annotated[float, Ge(0), Lt(1)]


class Muon(Optimizer):
    """Two groups: `use_muon` says whose step is whose. `lr` may differ, and a schedule scales each."""

    whole_tensors = True

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: Rate = 0.02,
        momentum: Decay = 0.95,
        nesterov: bool = True,
        weight_decay: Rate = 0.0,
        ns_steps: Annotated[int, Ge(1), Lt(100)] = 5,
        adjust_lr_fn: Literal["original", "match_rms_adamw"] = "original",
        adamw_lr: Rate = 0.001,
        adamw_betas: tuple[Decay, Decay] = (0.9, 0.999),
        adamw_eps: Annotated[float, Gt(0)] = 1e-8,
        adamw_weight_decay: Rate = 0.01,
        fused: bool | None = None,
    ) -> None:
        """`lr`, `momentum`, `weight_decay`: eta, mu and lambda, of matrices. `adjust_lr_fn`: s. `adamw_...`, `fused`:
        of what is no matrix.
        """
        params = list(params)
        self._muon = torch.optim.Muon(
            [{"params": [x for x in params if x.dim() == 2]}],
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        self._adamw = torch.optim.AdamW(
            [{"params": [x for x in params if x.dim() != 2]}],
            lr=adamw_lr,
            betas=(adamw_betas[0], adamw_betas[1]),
            eps=adamw_eps,
            weight_decay=adamw_weight_decay,
            fused=fused,
        )
        [matrices], [others] = self._muon.param_groups, self._adamw.param_groups
        super().__init__([{**matrices, "use_muon": True}, {**others, "use_muon": False}], {})

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["params"]:
                inner = self._muon if group["use_muon"] else self._adamw
                # each time: loading, and whoever steps on copies, gives this one other groups and another state
                inner.param_groups, inner.state = [group], self.state
                inner.step()
        return loss
