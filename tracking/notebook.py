"""A notebook's cell as a sink: one line with a bar, in place, as a run goes on."""

import time
from html import escape
from typing import Any

from .progress import Speed, score_of, whose
from .run_directory import Record
from .values import number
from .visible import visible

SECONDS_BETWEEN = 0.3  # updates; each is a message to the browser


class NotebookCell:
    """Replaces its output, so that a run leaves one line in the notebook however long it was."""

    def __init__(self, seconds_between: float = SECONDS_BETWEEN) -> None:
        """Must be called in the thread of the cell: records come from another thread, whose output might be shown
        elsewhere.
        """
        from IPython.display import display

        self._between = seconds_between
        self._title, self._step, self._evaluation, self._status = "starting", "", "", ""
        self._done = self._total = 0
        self._speed, self._whose = Speed(), ""
        self._shown_at = time.monotonic()
        self._handle: Any = display(self._bundle(), raw=True, display_id=True)

    def record(self, record: Record) -> None:
        match record["kind"]:
            case "start":
                self._title, self._total, self._whose = record["name"], record["steps"], whose(record)
            case "resume":
                self._done = record["step"]
            case "step":
                self._speed.add(record)
                self._done, self._step = record["step"], self._told(record)
            case "evaluation":
                of_step = f" at step {record['step']}" if record["step"] < self._done else ""
                self._evaluation = score_of(record) + of_step
            case "end":
                self._status = record["status"]
        if time.monotonic() - self._shown_at >= self._between:
            self._show()

    def close(self, summary: dict[str, Any] | None) -> None:
        """Shows the run's result. If the run failed, the exception gives the reason."""
        self._show()

    def _told(self, step: Record) -> str:
        loss, rate = number(step["loss"]), self._speed.value
        told = [] if loss is None else [f"loss {loss:.4f}"]
        return "  ".join([*told, *([] if rate is None else [f"{rate:,.0f} samples/s{self._whose}"])])

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        steps = f"{self._done}/{self._total} steps" if self._total else ""
        told = [visible(part) for part in (self._status, steps, self._step, self._evaluation) if part]
        text, title = "  ".join(told), visible(self._title)
        bar = (
            ""
            if self._status or not self._total
            else f'<progress value="{self._done}" max="{self._total}"></progress> '
        )
        return {
            "text/plain": f"{title}\n{text}",
            "text/html": f"<div>{escape(title)}<br>{bar}{escape(text)}</div>",
        }
