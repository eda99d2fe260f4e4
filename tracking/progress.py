"""The terminal as a sink: a live view for a person (view.py), plain lines for a log file.

An asynchronous run takes snapshots and judges them when training is over: then the evaluations of earlier steps come.
"""

import math
import time
from collections import deque
from itertools import islice
from typing import Any, TextIO

from . import values
from .columns import METRICS
from .evaluations import own_metrics
from .run_directory import Record
from .visible import visible

SECONDS_BETWEEN_LINES = 5.0
MOST_METRICS = 3  # of an evaluation, beside its accuracy
RECENT = 20  # steps that the speed is taken over


class ProgressLines:
    """One line on start, one every 5 s at most, one for each evaluation, one at the end."""

    def __init__(self, stream: TextIO, seconds_between: float = SECONDS_BETWEEN_LINES):
        self._stream = stream
        self._seconds_between = seconds_between
        self._total = self._step = 0
        self._whose = ""
        self._last_line = float("-inf")
        self._speed = Speed()

    def record(self, record: Record) -> None:
        match record.get("kind"):
            case "start":
                self._total, self._whose = record["steps"], whose(record)
                self._last_line = time.monotonic()
                self._print(title_of(record) + f", {record['steps']} steps")
                if told := contents_of(record):
                    self._print(f"data: {told}")
            case "step":
                self._step = record["step"]
                self._speed.add(record)
                if time.monotonic() - self._last_line >= self._seconds_between:
                    self._last_line = time.monotonic()
                    total = f"/{self._total}" if self._total else ""
                    self._print(f"step {record['step']}{total}  {self._told(record)}{self._whose}")
            case "evaluation":
                afterwards = " (evaluated afterwards)" if record["step"] < self._step else ""
                self._print(f"step {record['step']}  {evaluation_text(record)}{afterwards}")
            case "resume":
                self._print(f"resumed at step {record['step']}")
            case "stop":
                self._print(f"stopping: {record['reason']}")
            case "note":
                self._print(f"note: {record['text']}")
            case "end":
                self._print(record["status"])

    def close(self, summary: dict[str, Any] | None) -> None:
        """Nothing to do: every line is flushed as it is written."""

    def _told(self, step: Record) -> str:
        return f"loss {number(step['loss'], '.4f')}  {number(self._speed.value, ',.0f')} samples/s"

    def _print(self, text: str) -> None:
        print(visible(text), file=self._stream, flush=True)  # records may be anybody's


class Speed:
    """Samples a second over the last RECENT steps: their samples over the time in them, as the table at the end has it
    over all but the first steps. One step alone may be anything.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=RECENT)  # (samples, seconds)

    def add(self, step: Record) -> None:
        """A record that does not tell it is left out."""
        rate, seconds = values.number(step.get("samples_per_second")), values.number(step.get("step_time"))
        if rate is not None and seconds is not None and math.isfinite(rate * seconds):
            self._steps.append((rate * seconds, seconds))

    @property
    def value(self) -> float | None:
        seconds = sum(each for _, each in self._steps)
        return sum(samples for samples, _ in self._steps) / seconds if seconds > 0 else None


def title_of(start: Record) -> str:
    """Name, choices and workers of a run, by its first record."""
    workers = f"{start['workers']} worker{'' if start['workers'] == 1 else 's'}"
    if servers := start.get("servers"):
        workers += f", {servers} server{'' if servers == 1 else 's'}"
    if start.get("modelled"):
        workers += " (modelled)"
    return f"{start['name']}: {start['model']} on {start['data']}, {start['strategy']} + {start['sync']}, {workers}"


def contents_of(start: Record) -> str:
    """Returns the data's contents in a line; "" where the record does not have it."""
    contents = start.get("contents")
    told = contents.get("in_words") if isinstance(contents, dict) else None
    return visible(told) if isinstance(told, str) else ""


def whose(start: Record) -> str:
    """Returns words for whose samples a step counts, if not all workers': without synchronous steps, each replica has
    its own pace.
    """
    of_all = start.get("together", True) or start.get("workers") == 1
    return "" if of_all else " of replica 0 alone"


def evaluation_text(evaluation: Record) -> str:
    """Returns the evaluation's scores, or else its loss, for people."""
    return score_of(evaluation) or f"loss {number(evaluation['loss'], '.4f')}"


def score_of(evaluation: Record) -> str:
    """Returns the evaluation's accuracy, or R^2, and the first few metrics without a column, for people; "" for
    none.
    """
    forms = dict(zip(METRICS, (("accuracy", ".2%"), ("R^2", ".4f")), strict=True))
    found = ((*forms[key], evaluation[key]) for key in METRICS if key in evaluation)
    scores = [f"{name} {number(value, form)}" for name, form, value in found][:1]
    own = islice(own_metrics(evaluation).items(), MOST_METRICS)
    return "  ".join([*scores, *(f"{name} {number(value, '.4g')}" for name, value in own)])


def number(value: float | str | None, form: str) -> str:
    """A record's number as text; "nan" and the infinities are strings there already."""
    return "-" if value is None else value if isinstance(value, str) else format(value, form)
