"""The state and the batches that all workers must have alike."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..exchange.alike import agree, digest, digest_of, first_apart, give_all, is_compared
from ..strategies.core.copies import give_own_memory
from .errors import ScriptError


def share_state(model: nn.Module, comm: Comm) -> None:
    """Replica 0 broadcasts all parameters and buffers, frozen ones too. Raises `ScriptError`."""
    if comm.size == 1:
        return
    give_own_memory(model)
    state = list(_state(model))
    kinds = [f"{name} {list(each.shape)} {each.dtype} {each.requires_grad}" for name, each in state]
    device = next(model.parameters()).device
    if not agree(digest(hashlib.blake2b(), kinds), comm, device):
        raise ScriptError(
            "wrap: workers have different models: other parameters, buffers, shapes or dtypes. Build the same model on "
            "all of them"
        )
    give_all([each for _, each in state], comm, device)


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


class BufferComparison:
    """The buffers of replicas that have the same weights. A user is told once of one that differs.

    It is no error: batch norms have such.
    """

    def __init__(self, model: nn.Module, comm: Comm, device: torch.device) -> None:
        self._model, self._comm, self._device = model, comm, device
        self._is_told = False

    def after(self, step: int) -> None:
        """Compares them after steps 1, 2, 4, 8, ... of all workers."""
        if self._is_told or self._comm.size == 1 or not is_compared(step):
            return
        digests = {name: digest_of(each) for name, each in self._model.named_buffers()}
        found = first_apart(digests, self._comm, self._device) if digests else None
        self._is_told = found is not None
        if found is not None and self._comm.rank == 0:
            name, other = found
            print(
                f"note: buffer {name} of worker {other} differs from that of worker 0: each follows the samples of its "
                "own worker. model.safetensors gets that of worker 0.",
                file=sys.stderr,
                flush=True,
            )


class Order:
    """A digest of all batches so far. Workers compare it in a pass at batches 1, 2, 4, 8, ... and at its end."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b()

    def add(self, batch: Sequence[Any]) -> int:
        """Returns the digest after this batch."""
        return digest(self._hash, [plain_of(each) for each in batch])


def plain_of(drawn: Any) -> str:
    """Returns an index as text: a number, whatever type it has, or a key. Of other objects it is the type alone."""
    try:
        return str(index(drawn))
    except (TypeError, ValueError, RuntimeError):
        pass
    if isinstance(drawn, str | bytes | float):
        return repr(drawn)
    if isinstance(drawn, tuple | list):
        return f"({','.join(map(plain_of, drawn))})"
    return type(drawn).__name__
