"""The waits of one worker in a group of the process fabric. Each ends within the timeout, and names who is missing.

A worker on a GPU waits for nccl here, and not in a stream: only so is a dead, frozen or late peer named.
"""

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from ..compat.full_gpu import says_full
from .calls import Calls
from .deadline import Deadline
from .errors import HangError, MessageError, PeerLostError
from .key_values import BEAT
from .marks import Mark, recorded, seconds_between
from .mutex import SharedMutex
from .process_worker import ProcessWorker, comes
from .shared_sum import SLICE, SharedSum, UnlikeError
from .socket_messages import PeerGoneError, Receive, Send, UnexpectedError

T = TypeVar("T")
LOOK = timedelta(seconds=BEAT)
OF_SOCKETS = TimeoutError, PeerGoneError, UnexpectedError


class Waits:
    """A worker's waits for the others of a group, on its clock. `ranks`: the group's members in the whole run."""

    def __init__(self, worker: ProcessWorker, ranks: list[int], calls: Calls | None) -> None:
        """`calls`: those of the group on torch; None where it makes none."""
        self._worker, self._key_values, self._ranks, self._calls = worker, worker.key_values, ranks, calls
        self.timeline = worker.timeline

    # -- the clock

    def now(self) -> float:
        return time.perf_counter() - self._worker.origin

    def mark(self) -> Mark:
        event = self._worker.event
        return self.now() if event is None else recorded(event())

    def times(self, *marks: Mark) -> tuple[float, ...]:
        last = marks[-1]
        if self._worker.event is None or isinstance(last, float | int):
            return cast("tuple[float, ...]", marks)
        self._poll(last.query, "with its GPU busy", for_group=False)
        end = self.now()
        return tuple(mark if isinstance(mark, float | int) else end - seconds_between(mark, last) for mark in marks)

    def roughly(self, mark: Mark) -> float:
        """Returns when the mark was, or is at the earliest, without a wait."""
        return mark if isinstance(mark, float | int) else self.now()

    # -- waits

    def for_message(self, operation: Send | Receive, what: str) -> None:
        """Waits for a message of ours. Raises `HangError`, after which one may wait again, `PeerLostError`, or
        `MessageError` where what came is not what is due.
        """
        self._key_values.doing(what)
        try:
            self._worker.sockets.wait(operation)
        except OF_SOCKETS as error:
            raise self.named(error, what) from None
        finally:
            self._key_values.doing("computing")

    def for_sum(self, sums: SharedSum, number: int, what: str) -> None:
        """Raises `HangError`, after which one may wait again, `PeerLostError` or `UnlikeError`."""
        with self._doing(what):
            deadline = Deadline(self._worker.groups.timeout)
            while not sums.wait(number, SLICE):
                if (dead := self._ended_peers()) and not sums.wait(number, 5 * SLICE):  # their part may be done
                    raise self._lost(what, _have_died(dead))
                if not deadline.left():
                    raise self._hang(what)

    def for_mutex(self, mutex: SharedMutex, what: str) -> None:
        with self._doing(what):
            deadline = Deadline(self._worker.groups.timeout)
            while not mutex.acquire(BEAT):
                if not deadline.left():
                    raise self._hang(what)

    def for_work(
        self, work: dist.Work, what: str, since: Mark | None, looks: bool = False, message: bool = False
    ) -> None:
        """Waits for work of torch's. `since`: computing before it was this worker's own; None: that has ended.

        `looks`: on CPUs, now and then if others call something else; on GPUs always. `message`: gloo's, of hosts,
        which is complete only in a wait (pytorch #30723) and fails by itself.
        Raises `HangError`, `PeerLostError` or `MessageError`.
        """
        if self._worker.event is not None and not message:
            if since is not None:
                self.times(since)
            self._poll(work.is_completed, what)
            self.blocked(what, work.wait)  # of nccl's the current stream alone, from here on
        elif looks:
            while not self.blocked(what, lambda: _is_over(work)):
                self._check_alike(what)
        else:
            self.blocked(what, work.wait)

    def blocked(self, what: str, call: Callable[[], T]) -> T:
        """Makes a call that may block; turns torch's errors into ours, naming who is missing.

        An error about this worker's full GPU stays as it is: no peer is to blame.
        """
        self._key_values.doing(what)
        try:
            return call()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or says_full(str(error)):
                raise
            raise self.explained(error, what) from error
        finally:
            self._key_values.doing("computing")

    def _poll(self, is_over: Callable[[], bool], what: str, for_group: bool = True) -> None:
        """Waits for something on this worker's GPU. If it does not come, names who is missing and aborts nccl.

        `for_group`: it takes all of the group. nccl tells of no death on this host, and ends no wait by itself.
        """
        if is_over():
            return
        with self._doing(what):
            try:
                deadline = Deadline(self._worker.groups.timeout)
                while not comes(is_over, SLICE):
                    late = len(self._ranks) > 1 and not deadline.left()
                    if for_group:
                        self._check_alike(what)
                    # the dead may have done their part
                    if (for_group or late) and (dead := self._dead_peers()) and not comes(is_over, 5 * SLICE):
                        raise self._lost(what, _have_died(dead))
                    if late:
                        raise self._hang(what)
            except RuntimeError:
                self._worker.groups.abort()
                raise

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Says to others what this worker waits for."""
        self._key_values.doing(what)
        try:
            yield
        finally:
            self._key_values.doing("computing")

    # -- who is missing

    def named(self, error: Exception, what: str) -> HangError | PeerLostError | MessageError:
        """Returns an error of our sockets, one of `OF_SOCKETS`, as that of the fabric, which names workers."""
        if isinstance(error, PeerGoneError):
            return self._lost(what, error, self.rank_of(error.rank))
        if isinstance(error, UnexpectedError):
            return MessageError(f"worker {self._key_values.rank} {what}: {error}")
        return self._hang(what)

    def explained(self, error: RuntimeError, what: str) -> HangError | PeerLostError | MessageError:
        """Returns torch's error as ours."""
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            return self._hang(what)
        dead = self._lost_peers()  # gloo does not say, our own connections may
        return self._lost(what, _have_died(dead) if dead else error)

    def unlike(self, error: UnlikeError, what: str) -> MessageError:
        """Returns the same, with workers as they are numbered in the whole run."""
        return MessageError(f"worker {self._key_values.rank} {what}: {error.words(self._ranks)}")

    def lost(self) -> frozenset[int]:
        """Returns the ranks in the group of the workers that this one has lost."""
        self._worker.sockets.look()
        return frozenset(rank for rank, worker in enumerate(self._ranks) if worker in self._key_values.lost)

    def rank_of(self, peer: int | None) -> int | None:
        """Returns the rank in the group of a worker of the run."""
        return None if peer is None else self._ranks.index(peer)

    def _check_alike(self, what: str) -> None:
        """Checks the group while one of its calls is waited for. Raises `MessageError` where another worker calls
        something else.
        """
        if self._calls is not None and (error := self._calls.unlike(what)) is not None:
            raise error

    def _hang(self, what: str) -> HangError:
        return self._key_values.hang(self._ranks, what)

    def _lost(self, what: str, why: object, rank: int | None = None) -> PeerLostError | MessageError:
        """A peer has gone: perhaps since one of this worker's calls, in any group, was not what it was to call."""
        unlike = (calls.unlike(what) for calls in self._worker.calls)
        lost = PeerLostError(f"worker {self._key_values.rank} lost a peer {what}: {why}", rank)
        return next((error for error in unlike if error is not None), lost)

    def _ended_peers(self) -> list[int]:
        """Returns the workers of the group, by their ranks in the run, whose processes on this host have ended."""
        poll = select.poll()
        of = {self._worker.processes[peer]: peer for peer in self._ranks if peer in self._worker.processes}
        for descriptor in of:
            poll.register(descriptor, select.POLLIN)
        return sorted(of[descriptor] for descriptor, _ in poll.poll(0))

    def _lost_peers(self) -> list[int]:
        return sorted(self._ranks[rank] for rank in self.lost())

    def _dead_peers(self) -> list[int]:
        return sorted({*self._ended_peers(), *self._lost_peers()})


def _is_over(work: dist.Work) -> bool:
    """Returns whether it has ended, after `LOOK` at most. Raises the error with which it failed."""
    try:
        work.wait(LOOK)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it has failed, or has come to its end in this moment
    return True


def _have_died(workers: list[int]) -> str:
    return f"worker {', '.join(map(str, workers))} has died"
