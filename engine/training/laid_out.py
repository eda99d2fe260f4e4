"""Lays a model out on the device that evaluates it, whatever its size.

Where the device has room beside what training holds there, the model is moved to it. Else its weights stay on the host,
and each operation fetches those that it reads, which are gone once it is over: on the device there is one at a time.
The same operations read the same numbers either way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...compat.storages import storage_key
from ...compat.trees import map_tensors
from ...strategies.core.cost import payload

SHARE = 0.5  # of what is free, that a model may take: the rest is for what its passes compute


@contextmanager
def laid_out(model: nn.Module, device: torch.device) -> Iterator[None]:
    """`model`, which is on the host, computes on `device`; afterwards it is on the host again."""
    if not has_room(model, device):
        with Fetching(model, device):
            yield
        return
    model.to(device)
    yield
    model.to("cpu")  # its place on the device is training's


def has_room(model: nn.Module, device: torch.device) -> bool:
    """TorchScript reads its weights where nothing can fetch them: such a model has to be moved."""
    scripted = any(isinstance(layer, torch.jit.ScriptModule) for layer in model.modules())
    return device.type != "cuda" or scripted or payload([*model.parameters(), *model.buffers()]) <= SHARE * free(device)


def free(device: torch.device) -> int:
    """Bytes that new tensors can have there: what nobody has, and what torch keeps for later."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


class Fetching(TorchFunctionMode):
    """Operations read copies on `device` of the model's parameters and buffers, and of views of them.

    What an operation writes to one of them is lost with the copy.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._storages = {storage_key(tensor) for tensor in chain(model.parameters(), model.buffers())}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_tensors(self._fetched, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fetched(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device) if storage_key(tensor) in self._storages else tensor
