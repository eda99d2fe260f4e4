"""Copies a run's records to sinks (terminal, W&B) from a thread of its own, beside training."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from .errors import CorruptRunError
from .run_directory import Record, RunDirectory, follow
from .visible import visible


class Sink(Protocol):
    """A destination of records. Both calls come from the mirror's thread; either may raise."""

    def record(self, record: Record) -> None: ...
    def close(self, summary: dict[str, Any] | None) -> None: ...


class Mirror(threading.Thread):
    """Follows `run`'s metrics.jsonl and hands every new record to each sink, in order.

    Starts at once. A run that was opened again (resumed) is followed from where it was opened. A sink that
    raises is dropped with one line on stderr; the others and training go on.
    """

    def __init__(self, run: RunDirectory, sinks: Sequence[Sink]):
        super().__init__(name="paceline-mirror", daemon=True)
        self._run = run
        self._sinks = list(sinks)
        self._stop_following = threading.Event()
        self.start()

    def run(self) -> None:
        for record in follow(self._run.metrics, self._stop_following, self._run.opened_at):
            self._each(lambda sink, record=record: sink.record(record))
        summary = self._summary()
        self._each(lambda sink: sink.close(summary))

    def close(self, timeout: float = 60.0) -> bool:
        """Hands over what is left and closes the sinks. Call it after the summary is written.

        Waits at most `timeout` seconds; False when a sink was still busy then. The thread is a daemon:
        it cannot keep the process from ending.
        """
        self._stop_following.set()
        self.join(timeout)
        return not self.is_alive()

    def _summary(self) -> dict[str, Any] | None:
        try:
            return self._run.read_summary()
        except (CorruptRunError, OSError):
            return None

    def _each(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except Exception as error:
                self._sinks.remove(sink)
                sink_name = type(sink).__name__
                with suppress(OSError):  # a full or closed stderr stops nothing either
                    said = visible(f"{type(error).__name__}: {error}")
                    print(f"{sink_name} stopped ({said}); training goes on", file=sys.stderr)
