"""Mixed precision: the numbers in which passes compute, whatever the strategy and the sync mode.

Micikevicius et al. 2018, "Mixed Precision Training" (ICLR; arXiv 1710.03740), section 3. The parameters stay what they
are, float32: they are the paper's master copies, on which optimizers step and which are sent, saved and evaluated. In
training the forward pass of each part, and the loss, run under torch.autocast: linear layers, convolutions and
attention round their inputs and a copy of their weights, and give narrow activations; what loses too much by that, such
as the loss, is computed in float32. Backward follows, and the gradient of a weight is float32 when it comes to it.

Autocast's copies are not shared between the passes of a step (`cache_enabled`): torch has one cache for all threads of
a process, and the workers of a virtual cluster are threads of one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...conf.errors import ConfigError
from .estimated import HALVES, Estimate
from .loss import Loss, is_mean_cross_entropy
from .loss_scale import LossScale, scaled_backward

META = torch.device("meta")


class Precision:
    """`name`: as it is chosen. `dtype`: what passes round to; None: to nothing."""

    name: ClassVar[str] = "fp32"
    dtype: ClassVar[torch.dtype | None] = None

    def scale(self) -> LossScale | None:
        """Returns a new scale for a replica's loss; None where gradients need none."""
        return None

    def check(self, parts: Sequence[nn.Module]) -> None:
        """Raises `ConfigError` for weights that autocast would leave as they are."""
        others = {
            each.dtype
            for part in parts
            for each in part.parameters()
            if each.is_floating_point() and (each.requires_grad or each.dtype not in HALVES)
        }
        if self.dtype is not None and others - {torch.float32}:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others - {torch.float32}))
            raise ConfigError(
                f"precision={self.name}: rounds what is float32 on its way through a pass, and weights of this model "
                f"are {names}. Choose precision=fp32."
            )

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Returns a context in which forward passes on the device use this precision. On the meta device it needs
        `estimated` around it.
        """
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(_whose(device), dtype=self.dtype, cache_enabled=False)

    def estimated(self, device: torch.device) -> AbstractContextManager[Any]:
        """Returns a context in which casts on the meta device are those that autocast would make on `device`."""
        return nullcontext() if self.dtype is None else Estimate(device)

    def attach(self, part: nn.Module, device: torch.device) -> None:
        """Casts the training passes of `part`, and of its copies, from here on. `device`: the device of training."""
        if self.dtype is not None:
            around = _Around(self, device)
            part.register_forward_pre_hook(around.enter, prepend=True)
            part.register_forward_hook(around.leave, always_call=True)

    def loss(self, loss: Loss, scale: LossScale | None = None) -> Loss:
        """`loss` in this precision; backward begins with `scale` in place of 1."""
        return loss if self.dtype is None else _Cast(loss, self, scale)


class _Around:
    """Hooks of a module, around its passes."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._precision, self._device = precision, device
        self._open: list[list[AbstractContextManager[Any]]] = []

    def enter(self, module: nn.Module, inputs: object) -> None:
        # where passes are, which is not where weights are that are fetched from the host
        device = META if next(module.parameters()).is_meta else self._device
        contexts: list[AbstractContextManager[Any]] = []
        if module.training:
            contexts.append(self._precision.casting(device))
            if device.type == "meta":
                contexts.append(self._precision.estimated(self._device))
        for context in contexts:
            context.__enter__()
        self._open.append(contexts)

    def leave(self, module: nn.Module, inputs: object, output: object) -> None:
        for context in reversed(self._open.pop()):
            context.__exit__(None, None, None)


class _Cast:
    def __init__(self, loss: Loss, precision: Precision, scale: LossScale | None) -> None:
        self._loss, self._precision, self._scale = loss, precision, scale
        self.is_mean_cross_entropy = is_mean_cross_entropy(loss)
        self.weigh = getattr(loss, "weigh", None)  # of accumulated micro-batches: accumulation.py

    def __call__(self, outputs: Tensor, targets: Any) -> Tensor:
        with self._precision.casting(outputs.device):
            value = self._loss(outputs, targets)
        return value if self._scale is None else scaled_backward(value, self._scale)

    def instead(self, loss: Loss) -> "_Cast":
        return _Cast(loss, self._precision, self._scale)


def like(loss: Loss, other: Loss) -> Loss:
    """`other`, in the precision, and with the scale, of `loss`."""
    return loss.instead(other) if isinstance(loss, _Cast) else other


def narrowed(x: Tensor) -> Tensor:
    """Returns x as autocast would give it to a linear layer here: for layers with a backward pass of their own."""
    device = _whose(x.device)
    if x.dtype is not torch.float32 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def widened(x: Tensor) -> Tensor:
    """Returns x in float32 if it is bfloat16 or float16, else x itself."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _whose(device: torch.device) -> str:
    """Returns the device type whose autocast counts. The CPU's stands in for that of the meta device, of which torch
    has none, and for that of GPUs that are planned for from elsewhere.
    """
    is_here = device.type != "meta" and (device.type != "cuda" or torch.cuda.is_available())
    return device.type if is_here else "cpu"
