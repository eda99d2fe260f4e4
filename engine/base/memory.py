"""Peak memory of one worker by kind, measured from tensors: what is held, not what an allocator rounds it to."""

import ctypes
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ...compat import checkpointing
from ...compat.attention import fused_on_cpu, fused_on_cuda
from ...compat.dispatch import tree_leaves
from ...compat.storages import base_of, storage_key

BUILT_ONCE = 2**30  # bytes of a model from which on the workers of a host build it once (training/one_build.py)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind these tensors; a sparse one has two."""
    dense = (part for tensor in tensors for part in _parts(tensor))
    storages = {storage_key(tensor): tensor.untyped_storage() for tensor in dense}
    return sum(storage.nbytes() for storage in storages.values())


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if not tensor.is_sparse:
        return (tensor,)
    whole = tensor.coalesce()  # the momentum of sparse gradients
    return whole.indices(), whole.values()


def optimizer_state(optimizer: Optimizer) -> list[Tensor]:
    return [each for each in tree_leaves([*optimizer.state.values()]) if isinstance(each, Tensor)]


class ActivationPeak:
    """The most bytes that autograd kept for backward at any one time; parameters are not activations.

    `recomputes`: torch's activation checkpointing was met, so the peak may be in backward.
    """

    def __init__(self) -> None:
        self.peak = 0
        self.recomputes = False
        self._bytes = 0
        self._users: dict[int, int] = {}

    def count(self, tensor: Tensor, holder: object) -> None:
        """Count the tensor's storage for as long as `holder` lives."""
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        self._users[key] = self._users.get(key, 0) + 1
        if self._users[key] == 1:
            self._bytes += storage.nbytes()
            self.peak = max(self.peak, self._bytes)
        weakref.finalize(holder, self._drop, key, storage.nbytes())

    def restart(self) -> int:
        """The peak is from here on; returns the bytes that there are."""
        self.peak = self._bytes
        return self.peak

    def _drop(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            self._bytes -= size


class _Saved:
    """A saved tensor: when the graph lets go of it, it is let go of here.

    Detached: an output that is saved knows its node, which would hold this, and neither would ever be let go of.
    """

    def __init__(self, tensor: Tensor, account: ActivationPeak) -> None:
        self.tensor = tensor.detach()
        account.count(_own(self.tensor), self)


_current: ContextVar[ActivationPeak | None] = ContextVar("account", default=None)  # of this thread


@contextmanager
def activations(account: ActivationPeak | None = None) -> Iterator[ActivationPeak]:
    """Account for what forward and backward passes in here save for backward, recomputed or not.

    `account`: one to go on with.
    """
    account = account or ActivationPeak()

    def pack(tensor: Tensor) -> Tensor | _Saved:
        return tensor if _is_parameter(tensor) else _Saved(tensor, account)

    def unpack(saved: Tensor | _Saved) -> Tensor:
        return saved.tensor if isinstance(saved, _Saved) else saved

    _account_for_recomputation()
    with _accounted_to(account), saved_tensors_hooks(pack, unpack):
        yield account


@contextmanager
def unaccounted() -> Iterator[None]:
    """Passes in here are on nobody's account."""
    with _accounted_to(None), saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


@contextmanager
def _accounted_to(account: ActivationPeak | None) -> Iterator[None]:
    token = _current.set(account)
    try:
        yield
    finally:
        _current.reset(token)


def _own(tensor: Tensor) -> Tensor:
    """Returns this worker's part of it: a DTensor's own storage has the size of the whole, and nothing in it."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _is_parameter(tensor: Tensor) -> bool:
    # not by its storage: one that is cut up has another whenever it is whole
    return isinstance(base_of(tensor), nn.Parameter)


@cache
def _account_for_recomputation() -> None:
    """Have torch.utils.checkpoint show what it keeps of what it computes again.

    Its own hooks hide that: of a tensor saved in the first pass they keep nothing, and what is saved when the pass is
    computed again they keep until backward has asked for it. Where nobody accounts, they do as before.
    """
    first_pass, second_pass = checkpointing.hooks()

    class FirstPass(first_pass):
        def __init__(self, frame: Any) -> None:
            super().__init__(frame)
            frame.account = account = _current.get()  # now: backward may have a thread of its own
            if account is not None:
                account.recomputes = True

    class SecondPass(second_pass):
        def __init__(self, frame: Any, gid: Any) -> None:
            super().__init__(frame, gid)
            self._account: ActivationPeak | None = getattr(frame(), "account", None)  # None: from before this
            self._keep = self.pack_hook
            self.pack_hook = lambda tensor: self._pack(tensor)  # torch 2.15 hangs an attribute on it

        def _pack(self, tensor: Tensor) -> Tensor:
            if self._account is not None and not _is_parameter(tensor):
                tensor = tensor.detach()  # this object is kept, and by nobody else
                self._account.count(_own(tensor), tensor)
            return self._keep(tensor)

        def __enter__(self) -> None:
            self._accounted = _accounted_to(self._account)  # for another checkpoint within
            self._accounted.__enter__()
            super().__enter__()

        def __exit__(self, *args: object) -> None:
            super().__exit__(*args)
            self._accounted.__exit__(None, None, None)

    checkpointing.set_hooks(FirstPass, SecondPass)


class AttentionOf(TorchFunctionMode):
    """Computes attention on the meta device with the memory that `device` would use.

    torch has fused attention for each real device and none for meta, where it falls back on plain products and keeps
    the whole matrix of scores for backward: a tenth more than the default GPT keeps on a CPU, more in long contexts.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            attention = _Attention(*args, **kwargs)
            if attention.query.is_meta and attention.is_fused(self._device):
                return attention.fused(self._device)
        return func(*args, **kwargs)


class _Attention:
    """A call of torch's scaled_dot_product_attention, with its signature."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        self.query, self.inputs = query, (query, key, value)
        self.mask, self.dropout, self.causal, self.scale, self.grouped = (
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
        )

    def is_fused(self, device: torch.device) -> bool:
        """Returns whether torch fuses it. Of the cases in sdp_utils it is the plain one; on the CPU its kernel knows no
        dropout.
        """
        if not torch.backends.cuda.flash_sdp_enabled():  # somebody asked for plain products, on the CPU too
            return False
        plain = self.mask is None and not self.grouped and all(tensor.dim() == 4 for tensor in self.inputs)
        return plain and (device.type == "cuda" or (device.type == "cpu" and self.dropout == 0))

    def fused(self, device: torch.device) -> Tensor:
        """Computes by the meta version of a kernel. On CUDA it is the memory-efficient one's; flash, for half
        precision, keeps the same.
        """
        kernel = fused_on_cpu if device.type == "cpu" else fused_on_cuda
        return kernel(self.inputs, self.dropout, self.causal, self.scale)


def keep_freed() -> None:
    """Have glibc's malloc keep what a step frees for the next one, not give it back and take every page anew.

    Other C libraries do as they do.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        mallopt(_M_TRIM_THRESHOLD, 2**26)


def give_back() -> None:
    """Have glibc's malloc give back what is free now. Other C libraries do as they do."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def process_peak() -> int:
    """The most resident memory that this process has had, in bytes."""
    return _resident("VmHWM")


def process_now() -> int:
    """The resident memory that this process has, in bytes."""
    return _resident("VmRSS")


def _resident(entry: str) -> int:
    found = re.search(rf"{entry}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def other(kinds: Mapping[str, int], device: torch.device, before: int) -> int:
    """Bytes at the peak that are of none of the `kinds`: temporaries, the copy that is evaluated, data.

    On CUDA of the allocator's peak on the device; on the CPU of what this process grew by since it had `before`
    resident bytes. Kinds peak at different moments, so their sum may be more than there ever was: then 0.
    """
    if device.type == "cuda":
        held = sum(size for kind, size in kinds.items() if not kind.startswith("host_"))
        return max(torch.cuda.max_memory_allocated(device) - held, 0)
    return max(process_peak() - before - sum(kinds.values()), 0)


def device_peaks(device: torch.device) -> dict[str, int]:
    """Bytes that torch's allocator had given out on a GPU at the peak, and had taken from CUDA; {} for a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "device_peak": torch.cuda.max_memory_allocated(device),
        "device_reserved": torch.cuda.max_memory_reserved(device),
    }
