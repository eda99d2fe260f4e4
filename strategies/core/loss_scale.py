"""The scale S of a loss, which keeps its gradients within the numbers that float16 has.

Micikevicius et al. 2018, "Mixed Precision Training" (ICLR; arXiv 1710.03740), section 3.2: backward begins with S, not
with 1, so that by the chain rule all gradients are S times as large; they are divided by S before anything is made of
them. S is as large as it can be:

    some gradient is infinite or NaN:   no step;                S <- S / 2
    n steps in a row went well:         a step as ever, then    S <- 2 S

S is a power of two, so that neither loses a bit. A gradient is divided in a hook of its weight, before it is added to
`grad`: what is clipped, compressed, sent and stepped with is a gradient of the loss itself, and nothing else need know.

All workers of a replica leave a step out together, and all replicas where they step with one gradient
(`Sync.steps_together`): they tell one another in a sum of four bytes after backward, and have the same S. Where
replicas step by themselves, each has an S of its own.

Where S would fall below 1, the model itself gives gradients that are not finite, and the run ends.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...comm import Comm
from .errors import NotFiniteError

FLAG = 4  # bytes: a float32, whether a worker's gradients overflowed


class LossScale:
    """`value`: S. `skipped`, `taken`: steps that were left out, and the others. `among`: those who leave out a step
    together; None: alone.
    """

    def __init__(self, value: float, grow_every: int) -> None:
        self.value, self._grow_every = value, grow_every
        self.skipped = self.taken = 0
        self.among: Comm | None = None
        self._good = 0  # steps since S last changed
        self._flag = torch.zeros(1)
        self._later: list[nn.Parameter] = []

    def watch(self, parameters: Iterable[nn.Parameter], hooks: bool) -> None:
        """Divide the gradients of these. `hooks`: as they come; else all at once in `overflowed`."""
        found = list(parameters)
        self._flag = self._flag.to(found[0].device)
        if not hooks:
            self._later = found
            return
        for parameter in found:
            parameter.register_hook(self._unscaled)

    def _unscaled(self, gradient: Tensor) -> Tensor:
        found = gradient * (1 / self.value)
        self._look(found)
        return found

    def _look(self, gradient: Tensor) -> None:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        self._flag.logical_or_(values.isfinite().all().logical_not())

    def overflowed(self, rank: int) -> bool:
        """Returns whether this step is to be skipped. The scale is that of the next step afterwards. Called after
        backward, on all.

        Raises `NotFiniteError`.
        """
        for parameter in self._later:
            if parameter.grad is not None:
                to_local = getattr(parameter.grad, "to_local", None)  # a DTensor's own rows
                own: Tensor = parameter.grad if to_local is None else to_local()
                self._look(own.mul_(1 / self.value))
        if self.among is not None:
            with self.among.timeline.named("overflow"):
                self.among.all_reduce(self._flag, "max").wait()
        found = bool(self._flag)
        self._flag.zero_()
        self._follow(found, rank)
        return found

    def _follow(self, overflow: bool, rank: int) -> None:
        if not overflow:
            self.taken += 1
            self._good += 1
            if self._good == self._grow_every:
                self.value, self._good = 2 * self.value, 0
            return
        self.skipped += 1
        self.value, self._good = self.value / 2, 0
        if self.value < 1:
            raise NotFiniteError(
                f"worker {rank} diverged: its gradients are not finite at a loss scale of 1 either, and no weight was "
                "changed by them; a smaller optimizer.lr, or precision=bf16, may help"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.value, "good": self._good, "skipped": self.skipped, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self._good, self.skipped = state["scale"], state["good"], state["skipped"]
        self.taken = state["taken"]


def scaled_backward(loss: Tensor, scale: LossScale) -> Tensor:
    """The loss, whose backward pass begins with S times what it is given."""
    if not loss.requires_grad:
        return loss
    result: Tensor = _Scaled.apply(loss, scale.value)
    return result


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0] * ctx.scale, None
