"""Shows the progress of a sweep: a live table on a terminal, plain lines elsewhere. All of it on standard error."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .output import note

if TYPE_CHECKING:
    from rich.console import Console

    from ..sweep.study import Study, SweepTrial, TrialRecord
    from ..sweep.sweeper import Observer


@contextmanager
def view(study: "Study") -> Iterator["Observer"]:
    tally = Tally(study)
    if not sys.stderr.isatty():
        yield SweepLines(tally)
        return
    from rich.live import Live

    table = SweepTable(tally)
    with Live(get_renderable=table.render, console=_console(), refresh_per_second=4, transient=True):
        yield table


@contextmanager
def counting(total: int) -> Iterator[Callable[[int], None]]:
    """Progress of something quick, on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress(console=_console(), transient=True) as bar:
        task = bar.add_task("planning", total=total)
        yield lambda done: bar.update(task, completed=done)


def _console() -> "Console":
    from rich.console import Console

    from ..tracking.visible import colours

    return Console(stderr=True, color_system=colours())


class Tally:
    """The trials that have ended, the best of them, and the time that the rest takes."""

    def __init__(self, study: "Study") -> None:
        self.definition = study.definition
        trials = study.trials()
        known = self.definition.trials if self.definition.method != "grid" else len(trials)
        self.total = known or len(trials)
        self._ended = [done for done in trials if done.state in ("complete", "pruned", "failed")]
        self._before = len(self._ended)
        self._start = time.monotonic()

    @property
    def done(self) -> int:
        return len(self._ended)

    @property
    def failed(self) -> int:
        return sum(done.state == "failed" for done in self._ended)

    def add(self, done: "TrialRecord") -> None:
        self._ended = [other for other in self._ended if other.trial.place != done.trial.place]
        self._ended.append(done)

    def best(self) -> "TrialRecord | None":
        from .sweep_outcome import why_apart

        if why_apart(self._ended, self.definition.metric):
            return None
        known = [done for done in self._ended if done.value is not None and math.isfinite(done.value)]
        choose = max if self.definition.maximize else min
        return choose(known, key=lambda done: done.value or 0.0, default=None)

    def left(self) -> str:
        """Time until the end, as the trials so far tell."""
        here = self.done - self._before
        if here <= 0:
            return ""
        seconds = (time.monotonic() - self._start) / here * (self.total - self.done)
        return f"{_duration(seconds)} left"

    def said(self) -> str:
        best = self.best()
        parts = [f"{self.done} of {self.total} done"]
        parts += [f"{self.failed} failed"] if self.failed else []
        # of one seed, and some of the trials: nobody is named yet
        parts += [f"best {self.definition.metric} so far {best.value:.5g}"] if best else []
        parts += [self.left()] if self.left() else []
        return ", ".join(parts)


class SweepLines:
    """One line when a trial begins, one when it has ended."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def started(self, trial: "SweepTrial", run: str) -> None:
        note(f"trial {run}: {typed(trial)}")

    def step(self, trial: "SweepTrial", step: int, steps: int | None) -> None: ...
    def evaluated(self, trial: "SweepTrial", record: dict[str, Any]) -> None: ...

    def ended(self, done: "TrialRecord") -> None:
        self._tally.add(done)
        run = done.runs[-1] if done.runs else f"{done.trial.point:04d}"
        note(f"trial {run}: {outcome(done, self._tally.definition.metric)}; {self._tally.said()}")


class SweepTable:
    """The trials that run, with their progress, over the last that ended, and the best so far."""

    SHOWN = 5

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._running: dict[int, tuple[SweepTrial, str]] = {}
        self._steps: dict[int, tuple[int, int | None]] = {}
        self._last: dict[int, str] = {}
        self._ended: list[TrialRecord] = []

    def started(self, trial: "SweepTrial", run: str) -> None:
        self._running[trial.number] = (trial, run)

    def step(self, trial: "SweepTrial", step: int, steps: int | None) -> None:
        self._steps[trial.number] = (step, steps)

    def evaluated(self, trial: "SweepTrial", record: dict[str, Any]) -> None:
        from ..tracking.progress import score_of

        if said := score_of(record):
            self._last[trial.number] = said

    def ended(self, done: "TrialRecord") -> None:
        self._tally.add(done)
        self._running.pop(done.trial.number, None)
        self._ended = [*self._ended, done][-self.SHOWN :]

    def render(self) -> Any:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=self._tally.said(), title_justify="left")
        for title in ("trial", "parameters", "progress", ""):
            grid.add_column(title, overflow="fold")
        metric = self._tally.definition.metric
        for done in list(self._ended):
            run = done.runs[-1] if done.runs else ""
            grid.add_row(Text(run), Text(typed(done.trial)), Text(done.state), Text(outcome(done, metric)))
        for trial, run in list(self._running.values()):
            step, steps = self._steps.get(trial.number, (0, None))
            share = f"step {step:,} of {steps:,}" if steps else f"step {step:,}" if step else "starting"
            grid.add_row(Text(run), Text(typed(trial)), Text(share), Text(self._last.get(trial.number, "")))
        return grid


def typed(trial: "SweepTrial") -> str:
    return " ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in trial.chosen.items()
    )


def outcome(done: "TrialRecord", metric: str) -> str:
    if done.state == "complete" and done.value is not None:
        return f"{metric} {done.value:.5g}" if math.isfinite(done.value) else f"no {metric}"
    return f"failed: {done.reason}" if done.state == "failed" else done.state


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
