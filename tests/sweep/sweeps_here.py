"""Sweeps in this process, whose fork server is warm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from short_runs import HERE

from paceline.sweep.define import define
from paceline.sweep.directory import open_sweep
from paceline.sweep.study import SweepTrial, TrialRecord
from paceline.sweep.sweeper import Sweeper

SMALL = (
    *("tracking=none", "data.limit=200", "batch_size=16", "model.hidden=[16]", "checkpoint.every=0", "steps=4"),
    *("epochs=1000", "evaluate.every=1000", "hardware.threads=1"),
)


class Noted:
    """An observer: which trials began and ended; `at_start` is called with each run's directory name."""

    def __init__(self, at_start: Callable[[str], object] = lambda _: None) -> None:
        self.began: list[str] = []
        self.ends: list[TrialRecord] = []
        self._at_start = at_start

    def started(self, trial: SweepTrial, run: str) -> None:
        self.began.append(run)
        self._at_start(run)

    def step(self, trial: SweepTrial, step: int, steps: int | None) -> None: ...
    def evaluated(self, trial: SweepTrial, record: dict[str, Any]) -> None: ...

    def ended(self, done: TrialRecord) -> None:
        self.ends.append(done)


def sweep(
    root: Path,
    *words: str,
    resume: bool = False,
    seeds: int | None = None,
    trials: int | None = None,
    jobs: int = 1,
    max_failures: int | None = None,
    storage: str | None = None,
    grace: float = 60.0,
    observer: Noted | None = None,
) -> list[TrialRecord]:
    """A sweep to its end, in `root/swept`: what its study then knows, in order."""
    definition = define(
        [*SMALL, *words],
        seeds=seeds,
        trials=trials,
        config_dir=str(HERE / "conf"),
        allow_modules=("saboteur",),
    )
    with open_sweep("swept", definition, root, resume, storage=storage, grace=grace) as opened:
        Sweeper("swept", opened.study, opened.directory, jobs, max_failures, observer or Noted()).run()
        return opened.study.trials()
