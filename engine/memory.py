"""Peak memory of one worker by kind, measured from tensors: what is held, not what an allocator rounds it to."""

import re
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind these tensors."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def optimizer_state(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


class ActivationPeak:
    """The most bytes that autograd kept for backward at any one time; parameters are not activations."""

    def __init__(self) -> None:
        self.peak = 0
        self._bytes = 0
        self._users: dict[int, int] = {}

    def add(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._users[key] = self._users.get(key, 0) + 1
        if self._users[key] == 1:
            self._bytes += storage.nbytes()
            self.peak = max(self.peak, self._bytes)
        return key

    def drop(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            self._bytes -= size


class _Saved:
    """A saved tensor: when the graph lets go of it, it is let go of here."""

    def __init__(self, tensor: Tensor, account: ActivationPeak) -> None:
        self.tensor = tensor
        key = account.add(tensor)
        weakref.finalize(self, account.drop, key, tensor.untyped_storage().nbytes())


@contextmanager
def activations(module: nn.Module) -> Iterator[ActivationPeak]:
    """Account for what the forward passes of `module` save for backward."""
    account = ActivationPeak()

    def pack(tensor: Tensor) -> Tensor | _Saved:
        base = tensor if tensor._base is None else tensor._base
        # not by its storage: one that is cut up has another whenever it is whole
        return tensor if isinstance(base, nn.Parameter) else _Saved(tensor, account)

    def unpack(saved: Tensor | _Saved) -> Tensor:
        return saved.tensor if isinstance(saved, _Saved) else saved

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield account


def process_peak() -> int:
    """The most resident memory that this process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
