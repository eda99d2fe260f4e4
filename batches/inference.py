"""Layers that compute as in evaluation, also while their model trains."""

from typing import Any

from torch import nn


def always_infer(layer: nn.Module) -> None:
    """Has `layer` compute as in evaluation from now on; a copy of it does so, too."""
    setattr(layer, _MARK, True)
    layer.register_forward_pre_hook(_infer)


def infers(layer: nn.Module) -> bool:
    """Returns whether `layer` computes as in evaluation while its model trains."""
    return getattr(layer, _MARK, False)


_MARK = "always_infers"


def _infer(layer: nn.Module, inputs: Any) -> None:
    layer.training = False


_infer.sets_mode = True  # pyright: ignore[reportFunctionMemberAccess]  # compat/modules.py asks for it
