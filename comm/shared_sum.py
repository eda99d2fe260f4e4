"""Sums over the workers of one host, through memory that all of them map.

A tensor goes in pieces that stay in cache. Of each piece every worker sums its own share:

    1. it copies the others' shares of its tensor into its `in`, and posts;
    2. once all have posted, it sums its share over all workers, in the order of ranks, into its tensor and its `out`,
       and posts;
    3. once all have posted, it copies the others' shares from their `out` into its tensor.

Nobody writes `in` again before all have posted 2, nor `out` before all have posted 1 of the next piece, so that one
copy of each is enough. Sums of float16 and bfloat16 are made in float32 and rounded once.

Before it posts 1 of a tensor's first piece, a worker tells of how many entries and of which dtype the whole tensor is.
Once all have posted, all compare: where these are not alike nobody posts 2, no sum is written, and there are no more
sums in this group. One copy is enough, too: a worker tells of its next tensor after all have posted 2 of its last
piece, and whoever has posted 2 has compared.

A thread of its own does that, so that it goes on while the worker computes: native/all_reduce.c, or the same in torch
where nothing can be compiled.
"""

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from struct import Struct
from threading import Condition, Thread
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .semaphores import Semaphores
from .unlike import odd, workers

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)  # as in all_reduce.c
SPINS = 2000  # looks before a worker that somebody waits for goes to sleep: about 50 microseconds
SLICE = 0.02  # seconds
LINE = 64  # bytes that what workers share is aligned to


def piece_of(workers: int) -> int:
    """Bytes that go at once: few, so that they stay in cache; more where workers take turns on a core.

    One worker says it for all: others may have other cores to use, and the memory is laid out by it.
    """
    most = 2**19 if workers <= len(os.sched_getaffinity(0)) else 2**21
    return max(2**16, min(most, 2**23 // workers)) // LINE * LINE


class Summand(NamedTuple):
    """The form of a worker's tensor, as it tells the others."""

    entries: int
    dtype: torch.dtype


class UnlikeError(Exception):
    """Workers began a sum with tensors that are not alike. `told`: what each said of its own, by rank."""

    def __init__(self, told: list[Summand]) -> None:
        super().__init__(told)
        self.told = told

    def words(self, names: Sequence[int]) -> str:
        """Names the workers whose tensor differs from most, or from the first if no two are alike. `names`: by rank."""
        usual, who = odd(dict(zip(names, self.told, strict=True)))
        others = [
            f"{workers(its, 'sum')} {told.entries:,} entries of {_name(told)}"
            for told, its in who.items()
            if told != usual
        ]
        return f"{', '.join(others)}, where {workers(who[usual], 'sum')} {usual.entries:,} of {_name(usual)}"


def _name(told: Summand) -> str:
    return str(told.dtype).removeprefix("torch.")


class SharedSum(ABC):
    """One worker's end of a group. It sums one tensor after the other, as they are posted."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}  # those under way

    @staticmethod
    @abstractmethod
    def room(workers: int, piece: int) -> int:
        """Bytes of the shared memory, which is zero at first."""

    @staticmethod
    def make(memory: mmap.mmap, workers: int) -> None:
        """One worker makes it ready for all."""

    @abstractmethod
    def post(self, tensor: Tensor) -> int:
        """Begin a sum in place; returns its number. The tensor is dense, and of one of `DTYPES`.

        Raises `UnlikeError` of a sum before.
        """

    @abstractmethod
    def wait(self, number: int, seconds: float) -> bool:
        """Returns whether the sum is there, after that time at most.

        Raises `UnlikeError` where it, or one before it, cannot be.
        """

    @abstractmethod
    def close(self) -> None: ...


class NativeSum(SharedSum):
    """Sums by native/all_reduce.c."""

    def __init__(self, memory: mmap.mmap, rank: int, workers: int, piece: int) -> None:
        super().__init__()
        library = _library()
        assert library is not None
        self._c: ctypes.CDLL = library
        self._workers = workers
        self._memory = ctypes.c_char.from_buffer(memory)  # keeps it mapped
        spins = SPINS if workers <= len(os.sched_getaffinity(0)) else 0
        place = ctypes.addressof(self._memory)
        self._group = self._c.all_reduce_open(place, rank, workers, piece, spins)
        if self._group is None:
            raise OSError("no thread can be started")

    @staticmethod
    def available() -> bool:
        return _library() is not None

    @staticmethod
    def room(workers: int, piece: int) -> int:
        library = _library()
        assert library is not None
        return library.all_reduce_room(workers, piece)

    def post(self, tensor: Tensor) -> int:
        told = tensor.data_ptr(), tensor.numel(), DTYPES.index(tensor.dtype)
        while (number := self._c.all_reduce_post(self._group, *told)) == 0:  # too many are under way
            self.wait(min(self._held), SLICE)
        self._held[number] = tensor
        return number

    def wait(self, number: int, seconds: float) -> bool:
        if number not in self._held:
            return True
        done = self._c.all_reduce_wait(self._group, number, int(seconds * 1e9))
        if done < 0:
            raise UnlikeError([self._told(rank) for rank in range(self._workers)])
        if not done:
            return False
        for done in [held for held in self._held if held <= number]:
            del self._held[done]
        return True

    def _told(self, rank: int) -> Summand:
        dtype = ctypes.c_int()
        entries = self._c.all_reduce_told(self._group, rank, ctypes.byref(dtype))
        return Summand(entries, DTYPES[dtype.value])

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            self._c.all_reduce_close(group)
        self._held.clear()


def _library() -> ctypes.CDLL | None:
    if (c := native.load("all_reduce")) is None:
        return None
    c.all_reduce_room.restype, c.all_reduce_room.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_size_t]
    c.all_reduce_open.restype = ctypes.c_void_p
    c.all_reduce_open.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    c.all_reduce_post.restype = ctypes.c_uint32
    c.all_reduce_post.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    c.all_reduce_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_long]
    c.all_reduce_told.restype = ctypes.c_uint64
    c.all_reduce_told.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    c.all_reduce_close.argtypes = [ctypes.c_void_p]
    return c if all(c.all_reduce_takes(dtype) for dtype in range(len(DTYPES))) else None


# -- the same in torch

BLOCK = 2**15  # entries that torch adds on one thread
TOLD = Struct("=qq")  # entries of a tensor, and its place in DTYPES


class TorchSum(SharedSum):
    """Sums by torch and semaphores of the C library: one for each pair, which the second posts for the first."""

    def __init__(self, memory: mmap.mmap, rank: int, workers: int, piece: int) -> None:
        super().__init__()
        self._rank, self._workers, self._memory = rank, workers, memory
        self._semaphores = Semaphores(memory, rank, workers)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        at = Semaphores.room(workers)
        self._lines = range(at, at + workers * LINE, LINE)  # where each worker tells of its tensor
        self._in, self._out = whole[self._lines.stop :][: workers * piece * 2].view(2, workers, piece)
        self._begun = self._done = 0
        self._condition, self._stop = Condition(), False
        self._failed: Exception | None = None
        self._thread = Thread(target=self._work, name="shared sums", daemon=True)
        self._thread.start()

    @staticmethod
    def room(workers: int, piece: int) -> int:
        return Semaphores.room(workers) + workers * LINE + 2 * workers * piece

    @staticmethod
    def make(memory: mmap.mmap, workers: int) -> None:
        Semaphores.make(memory, workers)

    def post(self, tensor: Tensor) -> int:
        with self._condition:
            self._begun += 1
            self._held[self._begun] = tensor
            self._condition.notify_all()
            return self._begun

    def wait(self, number: int, seconds: float) -> bool:
        with self._condition:
            there = self._condition.wait_for(lambda: self._done >= number or self._failed is not None, seconds)
            if self._failed is not None and self._done < number:
                raise self._failed
            return there

    def close(self) -> None:
        with self._condition:
            self._stop = True
            self._condition.notify_all()
        self._thread.join()
        self._held.clear()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stop or self._done < self._begun)
                if self._stop:
                    return
                tensor = self._held[self._done + 1]
            try:
                if not self._sum(tensor):
                    return
            except Exception as error:
                with self._condition:
                    self._failed = error
                    self._condition.notify_all()
                return
            with self._condition:
                self._done += 1
                del self._held[self._done]
                self._condition.notify_all()

    def _sum(self, tensor: Tensor) -> bool:
        """Returns whether it came to its end without being stopped."""
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
        TOLD.pack_into(self._memory, self._lines[self._rank], len(flat), DTYPES.index(flat.dtype))
        pieces = flat.split(self._in.shape[1] // tensor.element_size())  # of no entries there is one, too
        return all(self._sum_piece(piece, i == 0) for i, piece in enumerate(pieces))

    def _check_alike(self) -> None:
        told = [TOLD.unpack_from(self._memory, line) for line in self._lines]
        if len({*told}) > 1:
            raise UnlikeError([Summand(entries, DTYPES[dtype]) for entries, dtype in told])

    def _sum_piece(self, piece: Tensor, is_first: bool) -> bool:
        rank = self._rank
        size, dtype = piece.element_size(), piece.dtype
        ins = [row[: len(piece) * size].view(dtype).tensor_split(self._workers) for row in self._in]
        outs = [row[: len(piece) * size].view(dtype).tensor_split(self._workers) for row in self._out]
        shares = piece.tensor_split(self._workers)
        for r, share in enumerate(shares):
            if r != rank:
                ins[rank][r].copy_(share)
        if not self._semaphores.pass_together(lambda: self._stop):
            return False
        if is_first:
            self._check_alike()
        rows = [shares[rank] if r == rank else ins[r][rank] for r in range(self._workers)]
        for block in zip(outs[rank][rank].split(BLOCK), *(row.split(BLOCK) for row in rows), strict=True):
            _sum_rows(*block)
        shares[rank].copy_(outs[rank][rank])
        if not self._semaphores.pass_together(lambda: self._stop):
            return False
        for r, share in enumerate(shares):
            if r != rank:
                share.copy_(outs[r][r])
        return True


def _sum_rows(out: Tensor, *rows: Tensor) -> None:
    wide = torch.float32 if out.dtype in (torch.float16, torch.bfloat16) else out.dtype
    total = rows[0].to(wide) + rows[1].to(wide)
    for row in rows[2:]:
        total += row.to(wide)
    out.copy_(total)
