"""torch.distributed.pipelining: making it ready before the first step, and what its stages receive in."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

from torch import Tensor

from .changed import need

USE = "by which strategy=torch_pipelining {}"


def start(schedule: Any, stages: Sequence[Any], inputs: Sequence[Tensor], target: Tensor | None) -> None:
    """Does ahead what the schedule's first step would do before it: workers vote, and receive buffers are made.

    Raises `ChangedLibraryError`.
    """
    own = "_initialize_stage" if hasattr(schedule, "_initialize_stage") else "_initialize_stages"
    for stage in stages:
        stage.has_backward = True
    begin = need(schedule, own, "torch", USE.format("starts"))
    takes_target = "target" in signature(begin).parameters  # from torch 2.12 on
    begin(tuple(inputs), {}, *([target] if takes_target else []))


def receive_buffers(stage: Any) -> list[Tensor]:
    """Returns the receive buffers of activations and of their gradients. Raises `ChangedLibraryError`."""
    infos = [
        info
        for name in ("args_recv_info", "grad_recv_info")
        for of_one in need(stage, name, "torch", USE.format("is accounted for")).values()
        for info in of_one
    ]
    buffers = [getattr(info, "buffer", None) for info in infos]  # the first stage's inputs have none
    return [buffer for buffer in buffers if buffer is not None]
