"""A run while it goes on, for a person at a terminal: what `train` shows, and `watch` of a run's directory.

Everything comes from the records of metrics.jsonl and from live.json; nothing is asked of the workers.
"""

import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .columns import human_bytes
from .live import SILENT, Looks, WorkerRates, read_live
from .progress import Speed, contents_of, evaluation_text, number, title_of, whose
from .run_directory import Record
from .sparkline import ASCII, BLOCKS, sparkline
from .visible import colours, visible

REFRESHES = 2  # a second: drawing takes some milliseconds
KEPT = 1000  # points of the loss, of which each second one is left out when there are more
ROWS = 16  # workers that are shown: of more, those that are slow or silent first
NARROW = 64  # columns of a terminal; with fewer some of the table's are left out


class View:
    """The known state of a run. `record` takes its records, `draw` draws it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._title, self._total, self._whose = directory.name, 0, ""
        self._contents = ""  # of the data
        self._step: Record | None = None
        self._speed = Speed()
        self._said: list[str] = []  # about evaluations, stops
        self._notes: list[str] = []
        self._losses: list[tuple[float, float]] = []
        self._stride = 1  # steps between points that are kept
        self._times: deque[tuple[float, int]] = deque(maxlen=20)  # (when, step): how fast it goes
        self._looks = Looks()
        self.workers: list[WorkerRates] = []

    def record(self, record: Record) -> None:
        """One that another version wrote, or somebody changed, is taken for what it tells."""
        match record.get("kind"):
            case "start":
                with suppress(KeyError, TypeError):
                    self._title = title_of(record)
                self._contents = contents_of(record)
                total, self._whose = record.get("steps"), whose(record)
                self._total = total if isinstance(total, int) else 0
            case "step" if isinstance(record.get("step"), int):
                self._step = record
                self._speed.add(record)
                self._keep(record)
            case "evaluation":
                with suppress(KeyError, TypeError, ValueError):
                    self._said = [f"{evaluation_text(record)} at step {record.get('step')}"]
            case "resume":
                self._said = [f"resumed at step {record.get('step')}"]
            case "stop":
                self._said = [f"stopping: {record.get('reason')}"]
            case "note":
                self._notes.append(f"note: {record.get('text')}")

    def _keep(self, record: Record) -> None:
        loss, step = record.get("loss"), record.get("step")
        if not isinstance(loss, int | float) or not isinstance(step, int) or step % self._stride:
            return
        self._losses.append((step, loss))
        if len(self._losses) > KEPT:
            self._losses, self._stride = self._losses[::2], 2 * self._stride

    def look(self) -> None:
        """Reads how far the workers are."""
        self._looks.add(read_live(self._directory))
        self.workers = self._looks.rates()
        if self._step is not None:
            self._times.append((time.monotonic(), self._step["step"]))

    def plain(self) -> dict[str, Any]:
        """Returns plain values for JSON. Rates are over the last seconds, if it was read more than once."""
        return {
            "steps": self._total or None,
            "last": self._step,
            "samples_per_second": self._speed.value,
            "said": [*self._notes, *self._said],
            "workers": [
                {
                    **asdict(each.now),
                    "step_time": each.step_time,
                    "blocked_share": each.blocked,
                    "sent_per_second": each.sent,
                    "slow": each.slow,
                }
                for each in self.workers
            ],
        }

    def draw(self, width: int, utf8: bool, encoding: str = "utf-8") -> RenderableType:
        lines: list[RenderableType] = [
            _text(self._title, encoding, "bold"),
            *([_text(f"data: {self._contents}", encoding)] if self._contents else []),
            self._bar(width),
            self._numbers(width, utf8),
        ]
        lines += [_text(said, encoding) for said in (*self._notes, *self._said) if said]
        if self.workers:
            lines.append(_table(self.workers, width, encoding))
        return Group(*lines)

    def _bar(self, width: int) -> RenderableType:
        done = self._step["step"] if self._step is not None else 0
        if not self._total:
            return Text(f"step {done:,}" if self._step else "starting")
        grid = Table.grid(padding=(0, 1))
        left = self._left(done)
        counted = f"step {done:,} of {self._total:,}{f', {left} left' if left else ''}"
        bar = ProgressBar(total=self._total, completed=done, width=max(min(width - len(counted) - 2, 40), 4))
        grid.add_row(bar, Text(counted))
        return grid

    def _left(self, done: int) -> str:
        if len(self._times) < 2 or done >= self._total:
            return ""
        (then, before), (now, last) = self._times[0], self._times[-1]
        if last <= before or now <= then:
            return ""
        seconds = round((self._total - done) * (now - then) / (last - before))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}"

    def _numbers(self, width: int, utf8: bool) -> Text:
        if self._step is None:
            return Text("no step yet")
        text = f"loss {_figure(self._step.get('loss'), '.4f')}"
        room = min(width - 50, 40)
        if room >= 8 and len(self._losses) > 1:
            text += f" {sparkline(self._losses, room, BLOCKS if utf8 else ASCII)}"
        return Text(f"{text}  {number(self._speed.value, ',.0f')} samples/s{self._whose}")


def _figure(value: Any, form: str) -> str:
    return number(value, form) if isinstance(value, int | float | str) else "-"


def _table(workers: list[WorkerRates], width: int, encoding: str) -> Table:
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for title in ("", "steps", "step ms", "blocked", *(["sent", "sent/s", "does"] if wide else []), "!"):
        side = "left" if title in ("", "does", "!") else "right"
        table.add_column(
            title.strip("!"), justify=side, no_wrap=True, overflow="crop", min_width=9 if title != "!" else 0
        )
    notable = [each for each in workers if each.slow is not None or each.now.silent >= SILENT]
    shown = sorted({id(each): each for each in [*notable, *workers][:ROWS]}.values(), key=lambda each: each.now.rank)
    for each in shown:
        now, marks = each.now, _marks(each)
        cells = [
            f"{now.kind} {now.rank}",
            f"{now.steps:,}" if now.kind == "worker" else "",
            "" if each.step_time is None else f"{1e3 * each.step_time:,.1f}",
            "" if each.blocked is None or now.kind != "worker" else f"{each.blocked:.0%}",
        ]
        cells += [human_bytes(now.sent), "" if each.sent is None else human_bytes(each.sent), now.doing] if wide else []
        table.add_row(*(_text(cell, encoding) for cell in cells), _text(marks, encoding, "bold yellow"))
    if len(workers) > len(shown):
        table.add_row(Text(f"and {len(workers) - len(shown)} more", style="dim"))
    return table


def _marks(each: WorkerRates) -> str:
    if each.now.silent >= SILENT:
        return f"! silent for {each.now.silent:.0f} s"
    return f"! computes {each.slow:.1f}x as long" if each.slow is not None else ""


def _text(text: str, encoding: str, style: str = "") -> Text:
    """Returns the text in characters that the terminal's encoding has."""
    return Text(visible(text).encode(encoding, "backslashreplace").decode(encoding), style=style)


class _Console(Console):
    """Leaves the cursor alone, so that nothing has to be put right when this process is killed."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class LiveView:
    """The view as a sink: drawn again and again on a terminal, from a thread of its own, until it is closed."""

    def __init__(self, directory: Path, stream: IO[str] | None = None) -> None:
        self.view = View(directory)
        self._console = _Console(file=sys.stderr if stream is None else stream, color_system=colours())
        self._looked = 0.0
        self._live = Live(
            console=self._console, get_renderable=self._drawn, refresh_per_second=REFRESHES, vertical_overflow="crop"
        )

    def _drawn(self) -> RenderableType:
        if time.monotonic() - self._looked >= 1.0:
            self._looked = time.monotonic()
            self.view.look()
        encoding = self._console.encoding
        return self.view.draw(self._console.width, encoding.startswith("utf"), encoding)

    def record(self, record: Record) -> None:
        self.view.record(record)
        if not self._live.is_started:
            self._live.start()

    def close(self, summary: dict[str, Any] | None) -> None:
        self.view.workers = []  # as of a while ago; what it came to is told beside
        self._looked = float("inf")
        if self._live.is_started:
            self._live.stop()
