"""The carriers of the runners of `turns`: a thread each, or a greenlet each, all in one thread.

A thread may hand its turn over anywhere, and a hand-over takes 20 us. Between greenlets it takes 1 us. But all their
passes happen in one thread, and torch keeps the pass that is under way in the thread. So a greenlet may hand its turn
over between passes only. What else torch keeps in a thread and may be set between passes travels with the greenlet:
whether gradients are recorded, and the hooks of saved tensors.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from greenlet import getcurrent, greenlet

from ..compat.passes import is_within_pass
from ..compat.saved_hooks import without_saved_hooks
from .errors import FabricError

DECLARE = "which strategy and sync mode do not declare: set waits_in_passes=True in the traits of the one that does"
_STACK = 4 * 2**20  # bytes of a thread's stack: address space, of which only what is used becomes memory

Live = Callable[[int], None]  # the life of the runner of a rank, to its end; it raises nothing
Following = Callable[[], int | None]  # the rank of the runner whose turn it is once one is over; None: all are over
Fail = Callable[[BaseException], None]  # tells that the run has failed, so that lives unwind


class Carrier(ABC):
    """Carries so many runners, by rank. `within_passes`: a turn may be handed over within a pass of autograd."""

    within_passes = True

    def __init__(self, runners: int) -> None:
        self.runners = runners
        self.begun = 0  # runners that can be handed a turn

    @abstractmethod
    def begin(self, live: Live, following: Following) -> None:
        """Gets ready to run the lives. Raises `FabricError` where the system has nothing to carry a runner with."""

    @abstractmethod
    def run(self, fail: Fail) -> None:
        """Returns when all lives that were begun are over."""

    @abstractmethod
    def hand_over(self, rank: int, following: int) -> None:
        """Gives the turn of runner `rank` to another one. Returns when it is the turn of `rank` again."""


class Threads(Carrier):
    """Hands the turn over by a lock for each runner, free only from being handed the turn to taking it up."""

    def __init__(self, runners: int) -> None:
        super().__init__(runners)
        self._batons = [threading.Lock() for _ in range(runners)]
        for baton in self._batons:
            baton.acquire()
        self._threads: list[threading.Thread] = []
        self._finished = threading.Event()

    def begin(self, live: Live, following: Following) -> None:
        self._following = following

        def turn(rank: int) -> None:
            self._batons[rank].acquire()
            live(rank)
            self._hand_on()

        before = threading.stack_size(_STACK)
        try:
            for rank in range(self.runners):
                # a daemon: Ctrl-C between two of these statements must not keep the interpreter from ending
                thread = threading.Thread(target=turn, args=(rank,), name=f"worker-{rank}", daemon=True)
                thread.start()
                self._threads.append(thread)
                self.begun += 1
        except RuntimeError as error:
            raise FabricError(
                f"hardware.workers={self.runners}: each is a thread, and this system has only {self.begun} to give "
                f"({error}). Choose fewer, or raise its limit (ulimit -u)."
            ) from None
        finally:
            threading.stack_size(before)

    def run(self, fail: Fail) -> None:
        try:
            self._hand_on()
            while not self._finished.wait(0.2):  # in slices, so that signals are handled
                pass
        except BaseException as error:  # Ctrl-C
            fail(error)
            self._finished.wait()
        for thread in self._threads:
            thread.join()

    def hand_over(self, rank: int, following: int) -> None:
        self._batons[following].release()
        self._batons[rank].acquire()

    def _hand_on(self) -> None:
        rank = self._following()
        if rank is None:
            self._finished.set()
        else:
            self._batons[rank].release()


class Greenlets(Carrier):
    """Switches from greenlet to greenlet. All are begun by the caller's, which the others come back to at their ends.

    One that is begun by another has that one's depth of calls on top of its own, and a few hundred reach the limit of
    Python 3.11.
    """

    within_passes = False

    def begin(self, live: Live, following: Following) -> None:
        self._hub, self._following = getcurrent(), following
        self._greenlets = [greenlet(live, self._hub) for _ in range(self.runners)]
        self.begun = self.runners

    def run(self, fail: Fail) -> None:
        records = torch.is_grad_enabled()
        rank = self._following()
        while rank is not None:
            its = self._greenlets[rank]
            if not its:
                torch.set_grad_enabled(records)
            try:
                rank = its.switch() if its else its.switch(rank)  # the rank of one that is to be begun, or None
            except BaseException as error:  # Ctrl-C
                fail(error)
                rank = None
            if rank is None:
                rank = self._following()

    def hand_over(self, rank: int, following: int) -> None:
        if is_within_pass():
            how = "within a forward or backward pass, or under a mode of torch"
            raise FabricError(f"worker {rank} waits for another {how}, {DECLARE}")
        records, its = torch.is_grad_enabled(), self._greenlets[following]
        without_saved_hooks(its.switch if its else partial(self._hub.switch, following))
        if torch.is_grad_enabled() != records:
            torch.set_grad_enabled(records)
