"""Stops a run early: all workers that step together must leave before the same step.

A worker cannot simply stop when it is told to: its peers would wait for it in the next all-reduce. So one of them, the
leader, announces twice a second, at a step that it announced the time before, whether this is the end and which step
is the next to look at. The others read the announcement when they come to that step. A worker that steps by itself has
nobody to tell, and leaves before its next step: how long its last one took says little of the next ones.

Workers that share memory see at once how far the others are, and leave before the first step that none has begun. They
announce all the same, as their modelled clocks have the waits for announcements.

Clients of federated rounds leave before a round that their server does not open (exchange/round_server.py).
Where a replica has several parts, the parts' servers agree here on that round.
"""

import json
from collections.abc import Callable

from ...comm.key_values import KeyValues, SharedKeyValues

PERIOD = 0.5  # seconds
GROWTH = 8  # the next announcement is at most so many times as many steps away as the last was


class StopAgreement:
    """`leader`: the worker whose word counts; `topic`: a name for those who step together; `alone`: it has no peers.

    `clock`: in seconds. By it all steps between two announcements are timed together: on a busy host one step may take
    a hundredth of the next. None, where time is modelled: each step's own time counts.
    """

    def __init__(
        self,
        key_values: KeyValues,
        rank: int,
        leader: int,
        topic: str,
        first_step: int,
        clock: Callable[[], float] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._key_values, self._leads, self._leader, self._topic = key_values, rank == leader, leader, topic
        self._look = first_step + 1
        self._round = 0
        self._alone = alone
        self._clock = clock if self._leads else None
        self._since: tuple[int, float] | None = None  # a step, and when it began

    def before(self, step: int, step_seconds: float) -> bool:
        """Returns whether to stop before `step`. `step_seconds`: of the last one."""
        if isinstance(self._key_values, SharedKeyValues) and self._key_values.stops_before(step, self._topic):
            return True
        if self._clock is not None and self._since is None:
            self._since = step, self._clock()
        if step < self._look:
            return False
        if self._alone:
            return self._key_values.stop_requested()
        self._round += 1
        key = f"stop/{self._topic}/{self._round}"
        if self._leads:
            steps = self._steps(step, step_seconds)
            decision = {"stop": self._key_values.stop_requested(), "look": step + min(max(steps, 1), 10_000)}
            self._key_values.post(key, json.dumps(decision))
        else:
            decision = json.loads(self._key_values.read(key, self._leader))
        self._look = decision["look"]
        return decision["stop"]

    def _steps(self, step: int, step_seconds: float) -> int:
        """Returns the number of steps that take about `PERIOD`."""
        if self._clock is None:
            return round(PERIOD / max(step_seconds, 1e-6))
        assert self._since is not None, "the first call comes before the first announcement"
        (before, then), now = self._since, self._clock()
        self._since, made = (step, now), max(step - before, 1)
        return min(round(PERIOD * made / max(now - then, 1e-6)), GROWTH * made)
