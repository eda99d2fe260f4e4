"""A device's memory as a pool of bytes with a cap, and what copies between it and the host in the background.

On a CPU the "device" is the pool alone: what is in it are tensors of their own, copied by a thread, so that whoever
uses it runs the same way there. On CUDA copies go over a stream of their own, from and to pinned memory.
"""

from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from ...conf.errors import ConfigError


class Pool:
    """Bytes in use by kind. Only the thread that computes takes and gives, so that its peak is no matter of timing."""

    def __init__(self, cap: int | None = None) -> None:
        """`cap`: bytes; None for no cap."""
        self.cap = cap
        self.total = self.peak = 0
        self.peaks: dict[str, int] = {}  # by kind, at the moment of the highest total
        self._used: Counter[str] = Counter()

    def take(self, kind: str, size: int) -> None:
        """Raises `ConfigError` where it would exceed the cap: more came than the rehearsal had."""
        if not self.fits(self.total + size):
            raise ConfigError(
                f"strategy.pool_mb={megabytes(self.cap)}: {self.total:,} bytes are in the pool and {size:,} of {kind} "
                "come, more than was foreseen. Choose a larger strategy.pool_mb."
            )
        self._used[kind] += size
        self.total += size
        if self.total > self.peak:
            self.peak, self.peaks = self.total, dict(self._used)

    def give(self, kind: str, size: int) -> None:
        self._used[kind] -= size
        self.total -= size
        assert self._used[kind] >= 0, f"more {kind} were given back than taken"

    def fits(self, total: int) -> bool:
        return self.cap is None or total <= self.cap


def megabytes(size: int | None) -> float | None:
    """`size` bytes in MiB, rounded up to the 1024th: as many MiB hold at least so many bytes."""
    return None if size is None else -(-size // 1024) / 1024


class Copy(ABC):
    """A copy under way. Both raise what the copying raised."""

    @abstractmethod
    def wait(self) -> None:
        """Orders all further computation of the device after the copy."""

    @abstractmethod
    def finish(self) -> None:
        """Returns when the copy is over: the host sees its result."""


class Copier(ABC):
    """Copies in the background, one after another, for as long as it is entered."""

    def __enter__(self) -> "Copier":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @abstractmethod
    def copy(self, source: Tensor, target: Tensor) -> Copy:
        """target <- source, once what the device was told to compute until now is done."""

    def host_bytes(self, size: int) -> Tensor:
        """[size] uint8 in the host's memory."""
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def pin(self, tensor: Tensor) -> None:
        """Make a host tensor one that can be copied in the background."""


def copier_for(device: torch.device) -> Copier:
    return _Stream(device) if device.type == "cuda" else _Thread()


class _Thread(Copier):
    """Leaving it waits for the copy under way, drops the others, and ends the thread."""

    def __enter__(self) -> Copier:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="offload")
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def copy(self, source: Tensor, target: Tensor) -> Copy:
        return _ThreadCopy(self._executor, source.detach(), target.detach())


def copy_now(source: Tensor, target: Tensor) -> None:
    # .data: unseen by autograd, as a device's copies are
    target.data.copy_(source)


class _ThreadCopy(Copy):
    def __init__(self, executor: ThreadPoolExecutor, source: Tensor, target: Tensor) -> None:
        self._pair: tuple[Tensor, Tensor] | None = source, target
        self._future = executor.submit(self._run)

    def _run(self) -> None:
        assert self._pair is not None
        source, target = self._pair
        self._pair = None  # when it is over nobody here has them any more
        copy_now(source, target)

    def wait(self) -> None:
        self._future.result()

    def finish(self) -> None:
        self._future.result()


class _Stream(Copier):
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def __exit__(self, *error: object) -> None:
        self._stream.synchronize()

    def copy(self, source: Tensor, target: Tensor) -> Copy:
        # memory for the target may have been another's until what is under way is done
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.data.copy_(source.detach(), non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return _StreamCopy(event, self._device)

    def host_bytes(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def pin(self, tensor: Tensor) -> None:
        # in its place: a sync mode may hold views of it
        if tensor.numel() and not tensor.is_pinned():
            runtime: Any = torch.cuda.cudart()
            storage = tensor.untyped_storage()
            torch.cuda.check_error(runtime.cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0))
            # else CUDA takes later memory at this address for pinned, and copies from the pages that were here
            finalize(storage, runtime.cudaHostUnregister, storage.data_ptr()).atexit = False


class _StreamCopy(Copy):
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def finish(self) -> None:
        self._event.synchronize()


class NoCopier(Copier):
    """A copier for a dry run with tensors that have no data: it copies nothing."""

    def copy(self, source: Tensor, target: Tensor) -> Copy:
        return _NoCopy()


class _NoCopy(Copy):
    def wait(self) -> None:
        pass

    def finish(self) -> None:
        pass
