"""Runners that run one at a time, in the order of a virtual clock.

What others can see happens in the order of (clock, rank). A runner may move its own clock on at any time. Before it
does something that others can see, it catches up: the earlier ones run first. An act of a runner that waits for
nothing, such as launching a collective, can be put off instead: it happens when it is due, in whoever's turn that is,
while the runner goes on. Whoever waits for another sleeps until that one wakes it. Events that are nobody's turn (a
message has left) happen in between, before the turns of all whose clock is as late, and wake runners too. When nobody
can run and no event is to come, each waits for another: a deadlock, which is found at once and named.

Torch's default generator travels with the runner: what one draws does not depend on whose turns lie between.
"""

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .carriers import Carrier
from .errors import HangError

_NAMED = 8  # as many of the waiting are named


class AbandonedError(BaseException):
    """Another runner failed: this one's life unwinds."""


class Runner:
    """A worker's life and its clock. Only the runner itself, or whoever wakes it, moves the clock on."""

    def __init__(self, rank: int) -> None:
        self.rank, self.clock = rank, 0.0
        self.ticket = 0  # of its valid entry among those that can run
        self.is_behind = False  # its clock has moved on, and the earlier ones have not run since
        self.waits: Callable[[], str] | None = None  # for whom, in words, while it sleeps
        self.over = False
        self.generator: Tensor = torch.default_generator.get_state()  # while another one runs


R = TypeVar("R", bound=Runner)
Act = Callable[[], None]


class Turns(Generic[R]):
    """Decides which runner's turn it is. All methods but `run` are for the runner whose turn it is."""

    def __init__(
        self,
        runners: Sequence[R],
        happen: Callable[[float], bool] = lambda before: False,
        stopped: Callable[[], list[str]] = list,
    ) -> None:
        """`runners`: by rank. `happen`: lets the next event happen, if there is one until the time that it is given.
        `stopped`: why events do not happen that runners wait for.
        """
        self._runners, self._happen, self._stopped = runners, happen, stopped
        # heap of (clock, rank, ticket, the act of this runner that was put off)
        self._ready: list[tuple[float, int, int, Act | None]] = []
        self._tickets = 0
        self._failure: BaseException | None = None
        self.failed_rank: int | None = None  # of the runner that raised it

    def run(self, life: Callable[[R], Any], carrier: Carrier) -> None:
        """`life` of each runner, to the end of all.

        Raises what the first to fail raised, `HangError` on a deadlock, `FabricError` where the system has nothing to
        carry a runner with; all lives are over then.
        """
        self._carrier = carrier
        generator = torch.default_generator.get_state()
        for runner in self._runners:
            self.wake(runner, runner.clock)
        try:
            carrier.begin(partial(self._live, life), self._following)
        except BaseException as error:  # Ctrl-C, too
            self._fail(error)
            for runner in self._runners[carrier.begun :]:
                runner.over = True
        carrier.run(self._fail)
        torch.default_generator.set_state(generator)
        if self._failure is not None:
            raise self._failure

    def move_on(self, runner: R, clock: float) -> None:
        """The runner's clock moves on to `clock`, if that is later. The earlier ones may run."""
        if self._failure is not None:
            raise AbandonedError
        runner.clock, runner.is_behind = max(runner.clock, clock), True

    def catch_up(self, runner: R) -> None:
        """Lets the earlier ones run first, if the runner's clock has moved on."""
        if self._failure is not None:
            raise AbandonedError
        if not runner.is_behind:
            return
        runner.is_behind = False
        if not self._advance((runner.clock, runner.rank, inf)):
            return
        self.wake(runner, runner.clock)
        following = self._pop()
        assert following is not None
        self._switch(runner, following)

    def put_off(self, runner: R, act: Act) -> None:
        """Does `act`, which others can see, when the earlier ones have run. `act` neither sleeps nor moves a clock."""
        if self._failure is not None:
            raise AbandonedError
        if not runner.is_behind:
            act()
            return
        self._tickets += 1
        heapq.heappush(self._ready, (runner.clock, runner.rank, self._tickets, act))

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
        self._tickets += 1
        runner.ticket = self._tickets
        heapq.heappush(self._ready, (max(runner.clock, clock), runner.rank, runner.ticket, None))

    # -- lives

    def _live(self, life: Callable[[R], Any], rank: int) -> None:
        runner = self._runners[rank]
        try:
            self._take_up(runner)
            life(runner)
        except AbandonedError:
            pass
        except BaseException as error:
            with suppress(AbandonedError):  # one that is earlier has failed
                self.catch_up(runner)
            self._fail(error, None if isinstance(error, KeyboardInterrupt) else rank)
        runner.over = True

    def _following(self) -> int | None:
        """Returns whose turn it is when a life is over: the next one's, or that of one that is left to unwind."""
        following = None
        with suppress(AbandonedError):
            following = self._pop() if self._failure is None else None
        if following is None:
            following = next((runner for runner in self._runners if not runner.over), None)
            if following is None:
                return None
            if self._failure is None:
                self._fail(self._deadlock())
        return following.rank

    def _switch(self, runner: R, following: R) -> None:
        """Returns when it is the turn of `runner` again."""
        runner.generator = torch.default_generator.get_state()
        self._carrier.hand_over(runner.rank, following.rank)
        self._take_up(runner)

    def _take_up(self, runner: R) -> None:
        if self._failure is not None:
            raise AbandonedError
        torch.default_generator.set_state(runner.generator)

    def _pop(self) -> R | None:
        """The earliest of those that can run, with its clock at that time, once all that comes before has happened."""
        if not self._advance((inf,)):
            return None
        clock, rank, _, _ = heapq.heappop(self._ready)
        runner = self._runners[rank]
        runner.ticket = 0
        runner.clock, runner.is_behind = max(runner.clock, clock), False
        return runner

    def _advance(self, due: tuple[float, ...]) -> bool:
        """Lets events and acts happen that come before `due`, as (clock, rank, ticket). Returns whether the turn of a
        runner comes first.
        """
        ready, runners = self._ready, self._runners
        while True:
            while ready and ready[0][3] is None and runners[ready[0][1]].ticket != ready[0][2]:
                heapq.heappop(ready)  # void
            if self._happen(min(ready[0][0], due[0]) if ready else due[0]):
                continue
            if not ready or ready[0] >= due:
                return False
            if ready[0][3] is None:
                return True
            self._act()

    def _act(self) -> None:
        """Does the act that is due."""
        _, rank, _, act = heapq.heappop(self._ready)
        assert act is not None
        try:
            act()
        except Exception as error:
            self._fail(error, rank)
            raise AbandonedError from None

    def _fail(self, error: BaseException, rank: int | None = None) -> None:
        """`rank`: of the runner that raised it."""
        if self._failure is None:
            self._failure, self.failed_rank = error, rank

    def _deadlock(self) -> HangError:
        stuck = [runner for runner in self._runners if not runner.over]
        words = [f"worker {runner.rank} {runner.waits()}" for runner in stuck[:_NAMED] if runner.waits is not None]
        more = f"; and {len(stuck) - _NAMED} others" if len(stuck) > _NAMED else ""
        why = "".join(f". {each}" for each in self._stopped())
        return HangError(
            f"deadlock at virtual second {max(runner.clock for runner in stuck):.6g}: {'; '.join(words)}{more}{why}"
        )
