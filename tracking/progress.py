"""The terminal as a sink: a progress bar for a person, plain lines for a log file.

An asynchronous run takes snapshots and judges them when training is over: then the evaluations of earlier steps come.
"""

import sys
import time
from typing import Any, TextIO

from .columns import METRICS
from .mirror import Sink
from .run_directory import Record

SECONDS_BETWEEN_LINES = 5.0


def progress(stream: TextIO | None = None) -> Sink:
    """A bar when `stream` (standard error) is a terminal, a line in place in a notebook, else plain lines."""
    if stream is None and in_notebook():
        from .notebook import Cell

        return Cell()
    chosen = sys.stderr if stream is None else stream
    return Bar(chosen) if chosen.isatty() else Lines(chosen)


def in_notebook() -> bool:
    """Whether IPython runs this process for a notebook, and not in a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Lines:
    """One line on start, one every 5 s at most, one for each evaluation, one at the end."""

    def __init__(self, stream: TextIO, seconds_between: float = SECONDS_BETWEEN_LINES):
        self._stream = stream
        self._seconds_between = seconds_between
        self._total = self._step = 0
        self._whose = ""
        self._last_line = float("-inf")

    def record(self, record: Record) -> None:
        match record["kind"]:
            case "start":
                self._total, self._whose = record["steps"], _whose(record)
                self._last_line = time.monotonic()
                self._print(_title(record) + f", {record['steps']} steps")
            case "step":
                self._step = record["step"]
                if time.monotonic() - self._last_line >= self._seconds_between:
                    self._last_line = time.monotonic()
                    total = f"/{self._total}" if self._total else ""
                    self._print(f"step {record['step']}{total}  {_step(record)}{self._whose}")
            case "evaluation":
                afterwards = " (judged afterwards)" if record["step"] < self._step else ""
                self._print(f"step {record['step']}  {_evaluation(record)}{afterwards}")
            case "resume":
                self._print(f"resumed at step {record['step']}")
            case "stop":
                self._print(f"stopping: {record['reason']}")
            case "end":
                self._print(record["status"])

    def close(self, summary: dict[str, Any] | None) -> None:
        """Nothing to do: every line is flushed as it is written."""

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar:
    """A rich progress bar: loss, samples a second, time left and the last accuracy."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[step]}"),
            TextColumn("{task.fields[evaluation]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None, step="", evaluation="")
        self._step, self._whose = 0, ""

    def record(self, record: Record) -> None:
        match record["kind"]:
            case "start":
                self._whose = _whose(record)
                self._bar.update(self._task, description=record["name"], total=record["steps"])
                self._bar.start()
                self._bar.console.print(_title(record), markup=False, highlight=False)
            case "step":
                self._step = record["step"]
                self._bar.update(self._task, completed=record["step"], step=_step(record) + self._whose)
            case "evaluation":
                of_step = f" at step {record['step']}" if record["step"] < self._step else ""
                self._bar.update(self._task, evaluation=_evaluation(record) + of_step)
            case "resume":
                self._bar.update(self._task, completed=record["step"])
            case "stop":
                self._bar.console.print(f"stopping: {record['reason']}", markup=False, highlight=False)

    def close(self, summary: dict[str, Any] | None) -> None:
        self._bar.stop()


def _title(start: Record) -> str:
    workers = f"{start['workers']} worker{'' if start['workers'] == 1 else 's'}"
    if servers := start.get("servers"):
        workers += f", {servers} server{'' if servers == 1 else 's'}"
    if start.get("modelled"):
        workers += " (modelled)"
    return f"{start['name']}: {start['model']} on {start['data']}, {start['strategy']} + {start['sync']}, {workers}"


def _step(step: Record) -> str:
    return f"loss {_number(step['loss'], '.4f')}  {_number(step['samples_per_second'], ',.0f')} samples/s"


def _whose(start: Record) -> str:
    """Of whom the samples of a step are, where not of all."""
    alone = start.get("together", True) or start["workers"] == 1
    return "" if alone else " of replica 0"


def _evaluation(evaluation: Record) -> str:
    return score_of(evaluation) or f"loss {_number(evaluation['loss'], '.4f')}"


def score_of(evaluation: Record) -> str:
    """Its accuracy, or R^2, for people; "" where it has neither."""
    forms = dict(zip(METRICS, (("accuracy", ".2%"), ("R^2", ".4f")), strict=True))
    found = ((*forms[key], evaluation[key]) for key in METRICS if key in evaluation)
    return next((f"{name} {_number(value, form)}" for name, form, value in found), "")


def _number(value: float | str | None, form: str) -> str:
    """A record's number as text; "nan" and the infinities are strings there already."""
    return "-" if value is None else value if isinstance(value, str) else format(value, form)
