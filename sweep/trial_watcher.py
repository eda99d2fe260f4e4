"""Follows one trial of a sweep while it trains."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.api.preparing import Prepared
from ..engine.launch.launcher import Stoppable
from ..tracking.run_directory import Record, RunDirectory
from .study import Study, SweepTrial


class TrialWatcher:
    """A sink: tells how a trial is doing, and stops it when the study gives it up."""

    def __init__(self, trial: SweepTrial, study: Study, tell: Callable[..., None], prepared: Prepared) -> None:
        self._trial, self._study, self._tell = trial, study, tell
        self._prunes = study.definition.early is not None and trial.seeds[0] in (None, prepared.experiment.seed)
        self._steps: int | None = None
        self._evaluations = 0
        self._lock, self._over = threading.Lock(), False
        self.pruned = False
        self.local_workers: Stoppable | None = None

    def record(self, record: Record) -> None:
        match record.get("kind"):
            case "start":
                self._steps = record.get("steps")
            case "step":
                self._tell("step", self._trial, record["step"], self._steps)
            case "evaluation":
                with self._lock:
                    if not self._over:
                        self._evaluated(record)

    def catch_up(self, run: Path) -> None:
        """Training has ended: look at the evaluations that the mirror has not handed over yet, and at no more."""
        with self._lock:
            evaluations = [record for record in RunDirectory(run).records() if record.get("kind") == "evaluation"]
            for record in evaluations[self._evaluations :]:
                self._evaluated(record)
            self._over = True

    def _evaluated(self, record: Record) -> None:
        self._evaluations += 1
        self._tell("evaluated", self._trial, record)
        value = record.get(self._study.definition.metric)
        if self._prunes and isinstance(value, int | float) and self.local_workers is not None and not self.pruned:
            self.pruned = self._study.report(self._trial, self._evaluations, value)
            if self.pruned:
                self.local_workers.ask_to_stop()

    def close(self, summary: dict[str, Any] | None) -> None: ...
