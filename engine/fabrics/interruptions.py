"""The cost of workers' failures on the virtual clock.

Where a failure stops all workers (`Rollbacks`), they go back to the last checkpoint and make the steps since then
again. A run replays bit for bit, so the steps that are made again give the same weights: it is exact to let their time
pass and to train them once. At the end of a step a worker's clock moves on by

    (moment of the failure - moment from which on work is lost) + restart + reading the checkpoint,

and by the time of writing after each checkpoint. A failure that comes while all are away, or while a checkpoint is
written, counts: the restart begins again, or the checkpoint is not there.

Where the others go on (`Absence`), the worker that failed loses the step under way and is away for the restart.

The interval of checkpoints is Young's sqrt(2 C M) (cost/interruptions.py), unless it is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...conf.errors import ConfigError
from ...cost.interruptions import first_order

MOST = 5.0  # mean times between failures, of a piece of work: one in e^5 = 148 attempts to make it succeeds

TRIES = 10_000  # of one step

ROUNDING = 1e-9  # three steps of 0.1 s are an interval of 0.3 s at any second of the clock


class Moments:
    """A sequence of moments without an end, by number."""

    def __init__(self, drawn: Iterator[float]) -> None:
        self._drawn, self._known = drawn, list[float]()

    def __getitem__(self, number: int) -> float:
        while len(self._known) <= number:
            self._known.append(next(self._drawn))
        return self._known[number]


@dataclass
class LostTime:
    """Seconds of one worker that moved training on by nothing, and the failures that it noticed."""

    failures: int = 0
    lost_work: float = 0.0  # of work that was thrown away
    downtime: float = 0.0  # in which it was away
    checkpoints: float = 0.0  # in which it wrote checkpoints

    KEYS: ClassVar = ("worker_failures", "lost_work_s", "downtime_s", "checkpoint_s")

    def told(self) -> dict[str, float]:
        return dict(zip(self.KEYS, (self.failures, self.lost_work, self.downtime, self.checkpoints), strict=True))


@dataclass(frozen=True)
class CheckpointTimes:
    """Seconds.

    Args:
        between: mean time from one failure in the run to the next.
        write: of writing a checkpoint.
        restart: from a failure until all are back, with reading a checkpoint.
        interval: of work between two checkpoints.
    """

    between: float
    write: float
    restart: float
    interval: float

    @classmethod
    def of(
        cls, between: float, nbytes: int, storage: float, restart: float, interval: float | None
    ) -> "CheckpointTimes":
        """`nbytes`: of a worker's checkpoint. `storage`: bytes a second. `interval`: None for Young's."""
        write = nbytes / storage
        return cls(between, write, restart + write, first_order(write, between) if interval is None else interval)

    def check(self, step: float, longest: float) -> None:
        """Raises `ConfigError` where failures come so often that a run would hardly end.

        Args:
            step: seconds.
            longest: seconds from one failure to the next.
        """
        piece = max(self.interval, step) + self.write + self.restart
        if step > self.between or piece > MOST * self.between or piece >= longest:
            raise ConfigError(
                f"failures: somebody fails every {self.between:.4g} s on average, which is too often for steps of "
                f"{step:.4g} s, checkpoints of {self.write:.4g} s every {self.interval:.4g} s and restarts of "
                f"{self.restart:.4g} s. Choose rarer failures, a shorter failures.restart or failures.interval, or "
                "fewer workers."
            )


@dataclass(frozen=True)
class Interruption:
    """A checkpoint, or a failure at `at`, that all workers take at the end of the same step."""

    step: int
    at: float | None = None  # None: a checkpoint
    back: float = 0.0  # when all are back


class Agreement:
    """The interruptions of a run, in order, which all workers share. Each is at the end of a step that none has made
    yet, so that all take it at the same place.
    """

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._next = 0  # failure
        self._passed = -1  # the last step that somebody is through
        self._decided: list[Interruption] = []

    def get(self, number: int, step: int, since: float, clock: float, times: CheckpointTimes) -> Interruption | None:
        """Returns the interruption of this number if it is due at the end of `step`, at `clock`.

        `since`: the moment from which on this worker's work is in no checkpoint.
        """
        if number == len(self._decided) and (found := self._due(step, since, clock, times)) is not None:
            self._decided.append(found)
        if number < len(self._decided) and self._decided[number].step <= step:
            return self._decided[number]
        return None

    def passes(self, step: int) -> None:
        self._passed = max(self._passed, step)

    def _due(self, step: int, since: float, clock: float, times: CheckpointTimes) -> Interruption | None:
        saves = clock - since >= times.interval * (1 - ROUNDING)
        failed, at_end_of = self._moments[self._next], max(step, self._passed + 1)
        if failed <= (clock + times.write if saves else clock):
            back = failed
            while self._moments[self._next] <= back:
                back = self._moments[self._next] + times.restart
                self._next += 1
            return Interruption(at_end_of, failed, back)
        return Interruption(at_end_of) if saves else None


class Rollbacks:
    """One worker of a run in which each failure stops all."""

    def __init__(self, agreement: Agreement, times: CheckpointTimes, now: float) -> None:
        self._agreement, self._times = agreement, times
        self._number = 0  # of the next interruption
        self._since = now  # from when on work is in no checkpoint
        self.lost = LostTime()

    def at_end_of(self, step: int, clock: float) -> float:
        """Returns the moment at which this worker goes on after `step`, whose work was over at `clock`.

        Raises `ConfigError` where failures come so often that the step is never made.
        """
        before = self.lost.failures
        while (due := self._agreement.get(self._number, step, self._since, clock, self._times)) is not None:
            self._number += 1
            if due.at is None:
                self.lost.checkpoints += self._times.write
                clock += self._times.write
                self._since = clock
            else:
                lost = max(due.at - self._since, 0.0)  # 0: it wrote its part of the checkpoint later than others
                self.lost.failures += 1
                self.lost.lost_work += lost
                self.lost.downtime += due.back - due.at
                clock += lost + (due.back - due.at)
                self._since += lost + (due.back - due.at)
                if self.lost.failures - before > TRIES:
                    raise ConfigError(
                        f"failures: step {step} was interrupted {TRIES:,} times in a row, so that the run would never "
                        "end. Choose rarer failures, or a shorter failures.interval or failures.restart."
                    )
        self._agreement.passes(step)
        return clock


class Absence:
    """One worker of a run in which the others go on while it is away."""

    def __init__(self, moments: Moments, restart: float, now: float) -> None:
        self._moments, self._restart = moments, restart
        self._next = 0
        self._since = now  # when its last step was over
        self.lost = LostTime()

    @property
    def fails_at(self) -> float:
        return self._moments[self._next]

    def back(self, clock: float) -> float | None:
        """Returns the moment at which this worker is back, if it has failed by `clock`."""
        if self.fails_at > clock:
            return None
        failed = back = max(self.fails_at, self._since)
        while self.fails_at <= back:
            back = max(self.fails_at, failed) + self._restart
            self._next += 1
        back = max(back, clock)
        self.lost.failures += 1
        self.lost.lost_work += failed - self._since
        self.lost.downtime += back - failed
        return back

    def is_over(self, clock: float) -> None:
        """A step is over at `clock`."""
        self._since = clock
