"""Failures of workers in predicted times: the goodput by closed forms (cost/interruptions.py).

The rules are those of `failures=` (engine/features/failing.py). In most modes a failure stops all workers, and the run
is interrupted as often as all workers together fail. In modes that go on without a worker, it loses its own step alone.
"""

from dataclasses import dataclass, replace

from ..cost.durations import time_of
from ..cost.interruptions import DALY_TIME, goodput, goodput_alone
from ..cost.rules import CostError
from ..engine.config.experiment import shipped
from .candidate import Predicted

HOUR = 3600.0
LEAST = 0.01  # goodput that is worth a training


@dataclass(frozen=True)
class ExpectedFailures:
    """
    Args:
        mtbf: mean hours between failures of one worker.
        restart: hours from a failure until the worker is back, without reading a checkpoint.
        storage: bytes a second at which a worker writes and reads a checkpoint.
    """

    mtbf: float
    restart: float
    storage: float

    @classmethod
    def of(cls, mtbf: float, restart: float | None = None, storage: float | None = None) -> "ExpectedFailures":
        """Takes what is None from `failures=poisson`."""
        usual = shipped("failures", "poisson").knobs
        return cls(
            mtbf,
            float(usual["restart"]) / HOUR if restart is None else restart,
            float(usual["storage"]) if storage is None else storage,
        )

    def goodput(self, workers: int, step: float, checkpoint: float, goes_on: bool) -> float:
        """Returns the share of the time that is kept work. Raises `CostError` where next to nothing is.

        Args:
            workers: that fail independently.
            step: seconds.
            checkpoint: bytes that a worker writes.
            goes_on: the others go on when one fails.
        """
        if goes_on:
            return goodput_alone(self.restart, self.mtbf, step / HOUR)
        write = checkpoint / self.storage / HOUR
        return goodput(write, self.restart + write, self.mtbf / workers, step / HOUR)

    def lower(self, row: Predicted, checkpoint: float, goes_on: bool = False) -> Predicted:
        """Returns the row with the goodput, by which its time and its price are longer; refused where failures are too
        frequent for it.
        """
        if row.seconds is None:
            return row
        try:
            share = self.goodput(row.candidate.workers, row.seconds, checkpoint, goes_on)
        except CostError:
            share = 0.0
        if share < LEAST:
            return replace(row, why=self._too_often(row.candidate.workers))
        price = None if row.dollars is None else row.dollars / share
        return replace(row, seconds=row.seconds / share, dollars=price, goodput=share)

    def _too_often(self, workers: int) -> str:
        between = time_of(self.mtbf / workers * HOUR)
        return f"--mtbf of {self.mtbf:,g} h: one of {workers} workers fails every {between}, too often to train"

    def in_words(self) -> str:
        return (
            f"goodput is modelled ({DALY_TIME}, Young's interval): each worker fails every "
            f"{self.mtbf:,g} h, restarts in {time_of(self.restart * HOUR)} and saves {self.storage:.3g} "
            "bytes a second; times and US$ are divided by it"
        )
