"""Threads that run one at a time, in the order of a virtual clock.

A runner runs only while its (clock, rank) is the least of all that can run. Whoever moves its clock on gives way to
the earlier ones; whoever waits for another sleeps until that one wakes it. Events that are nobody's turn (a message has
left) happen in between, before the turns of all whose clock is as late, and wake runners too. When nobody can run and
no event is to come, each waits for another: a deadlock, which is found at once and named.

Torch's default generator travels with the runner: what one draws does not depend on whose turns lie between.
"""

import heapq
import threading
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .errors import FabricError, HangError

_STACK = 4 * 2**20  # bytes of a runner's stack: address space, of which only what is used becomes memory
_NAMED = 8  # as many of the waiting are named


class AbandonedError(BaseException):
    """Another runner failed: this one's thread unwinds."""


class Runner:
    """A thread and its clock. Only the runner itself, or whoever wakes it, moves the clock on."""

    def __init__(self, rank: int) -> None:
        self.rank, self.clock = rank, 0.0
        self.baton = threading.Lock()  # free only from being handed the turn to taking it up
        self.baton.acquire()
        self.ticket = 0  # of its valid entry among those that can run
        self.waits: Callable[[], str] | None = None  # for whom, in words, while it sleeps
        self.over = False
        self.generator: Tensor = torch.default_generator.get_state()  # while another one runs


R = TypeVar("R", bound=Runner)


class Turns(Generic[R]):
    """Decides which runner's turn it is. All methods but `run` are for the runner whose turn it is."""

    def __init__(self, runners: Sequence[R], happen: Callable[[float], bool] = lambda before: False) -> None:
        """`runners`: by rank. `happen`: lets the next event happen, if there is one until the time that it is given."""
        self._runners, self._happen = runners, happen
        self._ready: list[tuple[float, int, int]] = []  # heap of (clock, rank, ticket)
        self._failure: BaseException | None = None
        self.failed_rank: int | None = None  # of the runner that raised it
        self._finished = threading.Event()

    def run(self, life: Callable[[R], Any]) -> None:
        """`life` of each runner, to the end of all.

        Raises what the first to fail raised, `HangError` on a deadlock, `FabricError` where the system has no more
        threads to give; no thread is left then.
        """
        generator = torch.default_generator.get_state()
        for runner in self._runners:
            self.wake(runner, runner.clock)
        threads = self._start(life)
        try:
            self._hand_on()
            while not self._finished.wait(0.2):  # in slices, so that signals are handled
                pass
        except BaseException as error:  # Ctrl-C
            self._fail(error)
            self._finished.wait()
        for thread in threads:
            thread.join()
        torch.default_generator.set_state(generator)
        if self._failure is not None:
            raise self._failure

    def give_way(self, runner: R) -> None:
        """Let the earlier ones run first."""
        if self._failure is not None:
            raise AbandonedError
        while self._happen(min(self._earliest(), runner.clock)):
            pass
        if self._ready and self._ready[0] < (runner.clock, runner.rank):
            self.wake(runner, runner.clock)
            following = self._pop()
            assert following is not None
            self._switch(runner, following)

    def sleep(self, runner: R, waits: Callable[[], str]) -> None:
        """Sleeps until another runner wakes it, or until the time given beforehand. `waits`: whom it waits for, in
        words.
        """
        if self._failure is not None:
            raise AbandonedError
        runner.waits = waits
        following = self._pop()
        if following is None:
            self._fail(self._deadlock())
            raise AbandonedError
        if following is not runner:
            self._switch(runner, following)
        runner.waits = None

    def wake(self, runner: R, clock: float) -> None:
        """`runner` can run, from `clock` on or its own if that is later; what was said of it before is void."""
        runner.ticket += 1
        heapq.heappush(self._ready, (max(runner.clock, clock), runner.rank, runner.ticket))

    # -- threads

    def _start(self, life: Callable[[R], Any]) -> list[threading.Thread]:
        threads: list[threading.Thread] = []
        before = threading.stack_size(_STACK)
        try:
            for runner in self._runners:
                # a daemon: Ctrl-C between two of these statements must not keep the interpreter from ending
                thread = threading.Thread(
                    target=self._live, args=(runner, life), name=f"worker-{runner.rank}", daemon=True
                )
                thread.start()
                threads.append(thread)
        except RuntimeError as error:
            self._fail(
                FabricError(
                    f"hardware.workers={len(self._runners)}: each is a thread, and this system has only "
                    f"{len(threads)} to give ({error}). Choose fewer, or raise its limit (ulimit -u)."
                )
            )
        except BaseException as error:  # Ctrl-C
            self._fail(error)
        finally:
            threading.stack_size(before)
        for runner in self._runners[len(threads) :]:
            runner.over = True
        return threads

    def _live(self, runner: R, life: Callable[[R], Any]) -> None:
        runner.baton.acquire()
        try:
            self._take_up(runner)
            life(runner)
        except AbandonedError:
            pass
        except BaseException as error:
            if self._failure is None:
                self.failed_rank = runner.rank
            self._fail(error)
        runner.over = True
        self._hand_on()

    def _hand_on(self) -> None:
        """The thread whose turn it was ends: the next one's turn, or that of one that a failure leaves to unwind."""
        following = self._pop() if self._failure is None else None
        if following is None:
            following = next((runner for runner in self._runners if not runner.over), None)
            if following is None:
                self._finished.set()
                return
            if self._failure is None:
                self._fail(self._deadlock())
        following.baton.release()

    def _switch(self, runner: R, following: R) -> None:
        """Returns when it is the turn of `runner` again."""
        runner.generator = torch.default_generator.get_state()
        following.baton.release()
        runner.baton.acquire()
        self._take_up(runner)

    def _take_up(self, runner: R) -> None:
        if self._failure is not None:
            raise AbandonedError
        torch.default_generator.set_state(runner.generator)

    def _pop(self) -> R | None:
        """The earliest of those that can run, with its clock at that time, once all that comes before has happened."""
        while self._happen(self._earliest()):
            pass
        if not self._ready:
            return None
        clock, rank, _ = heapq.heappop(self._ready)
        runner = self._runners[rank]
        runner.ticket += 1
        runner.clock = max(runner.clock, clock)
        return runner

    def _earliest(self) -> float:
        """The clock of the first that can run."""
        ready = self._ready
        while ready and self._runners[ready[0][1]].ticket != ready[0][2]:
            heapq.heappop(ready)  # void
        return ready[0][0] if ready else inf

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _deadlock(self) -> HangError:
        stuck = [runner for runner in self._runners if not runner.over]
        words = [f"worker {runner.rank} {runner.waits()}" for runner in stuck[:_NAMED] if runner.waits is not None]
        more = f"; and {len(stuck) - _NAMED} others" if len(stuck) > _NAMED else ""
        return HangError(
            f"deadlock at virtual second {max(runner.clock for runner in stuck):.6g}: {'; '.join(words)}{more}"
        )
