"""Schedules without a flush: the micro-batches of all batches in one stream, and updates in between.

Each stage takes one forward and one backward pass in turn, as in 1f1b, but from the first batch to the last: stage i of
p is p - 1 - i forward passes ahead of its backward passes. It updates its weights (U) once it has the whole gradient of
a batch. W(t) are the weights after t updates, w_i(t) those of stage i, counted from 1 as in the papers, and f is the
loss of batch t; where t is negative, read 0.

    pipedream      a batch is one micro-batch, the paper's minibatch. F reads the newest version, and B that of its F
                   (weight stashing; Narayanan et al. 2019, "PipeDream", SOSP; arXiv 1806.03377, section 3.3):
                       W(t+1) = W(t) - eta grad f(w_1(t-p+1), w_2(t-p+2), ..., w_p(t))
                   With vertical sync every stage reads the version that was the first stage's newest when the minibatch
                   entered there:
                       W(t+1) = W(t) - eta grad f(W(t-p+1))
    pipedream_2bw  a batch is m micro-batches, and all read the version that the batch before last made
                   (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503):
                       W(t+1) = W(t) - eta grad f(W(t-1))

A version lives until nothing reads it any more: stage i of pipedream has p - i, with vertical sync p, pipedream_2bw 2.
In steady state there is no bubble, where stages take the same time; the stream fills once, and drains once.

Deviation: PipeDream-2BW wants m >= p. Here, where m < p - 1, a stage takes backward passes until batch t - 2 is done
before batch t enters, so that there are two versions nevertheless, and a bubble.
"""

from collections import deque
from collections.abc import Mapping
from math import lcm
from typing import Literal, NamedTuple

from ...conf.errors import ConfigError
from .actions import Action, Schedule

Reads = Literal["newest", "entry", "before"]  # pipedream's, that with vertical sync, and pipedream_2bw's
READS: dict[str, Reads] = {"pipedream": "newest", "pipedream_2bw": "before"}  # by schedule
Versions = Mapping[tuple[int, int], int]  # (stage, micro-batch) -> the version that its passes read


class Placed(NamedTuple):
    action: Action
    version: int  # that F and B read; of U, the oldest that is still read after it


class StageActions:
    """The actions of one stage, as batches come. Micro-batches, and versions, are counted from 0."""

    def __init__(self, stage: int, workers: int, reads: Reads) -> None:
        self._stage, self._ahead, self._reads = stage, workers - 1 - stage, reads
        self._first = StageActions(0, workers, "newest") if reads == "entry" and stage > 0 else None
        self._batches = 0  # that have come
        self._micro_batches = 0  # of them
        self._entered = self._left = 0  # micro-batches that had their forward, and their backward pass
        self._ends: deque[int] = deque()  # of batches without their update: how many micro-batches came until then
        self._updates = 0
        self._read: dict[int, int] = {}  # micro-batches without their backward pass -> version
        self._absent: set[int] = set()  # the turn of a batch without samples, which other replicas have some of

    @property
    def micro_batches(self) -> int:
        """That have come."""
        return self._micro_batches

    def enter(self, micro_batches: int) -> list[Placed]:
        """A batch comes: what the stage does until the next one.

        One without samples has the turn of a micro-batch, in which nothing is done: replicas read the same versions.
        """
        if micro_batches == 0:
            self._absent.add(self._micro_batches)
        return self._present(self._enter(max(micro_batches, 1)))

    def drain(self) -> list[Placed]:
        """No batch comes any more."""
        row: list[Placed] = []
        while self._left < self._entered:
            row += self._backward()
        return self._present(row)

    def _present(self, row: list[Placed]) -> list[Placed]:
        return [each for each in row if each.action.kind == "U" or each.action.micro_batch not in self._absent]

    def _enter(self, micro_batches: int) -> list[Placed]:
        coming = range(self._micro_batches, self._micro_batches + micro_batches)
        self._batches += 1
        self._micro_batches += micro_batches
        self._ends.append(self._micro_batches)
        row: list[Placed] = []
        if self._reads == "before":
            self._read |= dict.fromkeys(coming, max(self._batches - 2, 0))
            while self._updates < self._batches - 2:
                row += self._backward()
        if self._first is not None:
            entered = self._first._enter(micro_batches)
            self._read |= {each.action.micro_batch: each.version for each in entered if each.action.kind == "F"}
        for j in coming:
            row.append(Placed(Action(self._stage, "F", j), self._read.setdefault(j, self._updates)))
            self._entered += 1
            if self._entered - self._left > self._ahead:
                row += self._backward()
        return row

    def _backward(self) -> list[Placed]:
        done = Placed(Action(self._stage, "B", self._left), self._read.pop(self._left))
        self._left += 1
        if self._left < self._ends[0]:
            return [done]
        self._ends.popleft()
        self._updates += 1
        return [done, Placed(Action(self._stage, "U", self._left - 1), self._oldest())]

    def _oldest(self) -> int:
        """The version that is read by the next micro-batch to go backward, whether it has come or not."""
        if self._left in self._read:
            return self._read[self._left]
        if self._reads == "before":
            return self._batches - 1
        return self._updates if self._first is None else self._first._updates


def without_flush(workers: int, batches: int, micro_batches: int, reads: Reads) -> tuple[Schedule, Versions]:
    """So many batches of so many micro-batches, from an empty pipeline to an empty one, and what versions they read."""
    rows: list[list[Action]] = []
    versions: dict[tuple[int, int], int] = {}
    for stage in range(workers):
        row = StageActions(stage, workers, reads)
        placed = [each for _ in range(batches) for each in row.enter(micro_batches)] + row.drain()
        rows.append([each.action for each in placed])
        versions |= {(stage, a.micro_batch): version for a, version in placed if a.kind == "F"}
    return rows, versions


def period(workers: int, micro_batches: int) -> int:
    """Batches after which steady state repeats: at most p micro-batches are under way, so every p of them it does."""
    return lcm(workers, micro_batches) // micro_batches


def stream(workers: int, micro_batches: int, reads: Reads) -> tuple[Schedule, Versions]:
    """Four periods: it fills, and settles, in the first two."""
    return without_flush(workers, 4 * period(workers, micro_batches), micro_batches, reads)


def reads_of(schedule: str | list[str], chunks: int, vertical_sync: bool) -> Reads | None:
    """Which version of the weights a forward pass reads, where updates come in between. Raises `ConfigError`."""
    if vertical_sync and schedule != "pipedream":
        raise ConfigError(
            "strategy.vertical_sync=true: is for strategy.schedule=pipedream, whose stages read versions of their own. "
            "Choose that, or strategy.vertical_sync=false."
        )
    if not isinstance(schedule, str) or schedule not in READS:
        return None
    if chunks != 1:
        raise ConfigError(
            f"strategy.chunks={chunks}: strategy.schedule={schedule} gives each worker one chunk of the model. Choose "
            "strategy.chunks=1, or strategy.schedule=interleaved."
        )
    return "entry" if vertical_sync else READS[schedule]
