"""Live metrics of the workers: each posts its own to its board, the launcher writes live.json (tracking/live.py)."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...comm import Comm
from ...comm.handshake import Endpoint
from ...comm.store import StoreClient
from ...tracking.live import WorkerMetrics, forget_live, write_live
from ..fabrics.layout import Role, RunLayout
from .meters import Meter

EVERY = 1.0  # seconds
WORKERS_A_SECOND = 256  # of more, a look is taken less often
TIMEOUT = 10.0  # seconds of one request to the store


def pause(workers: int) -> float:
    """Returns the seconds between two looks at as many workers, so that a look costs a run little however many."""
    return EVERY * max(1.0, workers / WORKERS_A_SECOND)


def live_metrics_of(role: Role, comm: Comm, meter: Meter | None) -> Callable[[], str]:
    """Returns a function that gives a worker's live metrics as JSON; a server has no steps. Another thread calls it."""
    ledger, timeline = comm.ledger, comm.timeline

    def told() -> str:
        clock = comm.now()
        steps, seconds, blocked = (
            (meter.trained_steps, meter.in_steps, meter.blocked) if meter else (0, clock, timeline.blocked)
        )
        return json.dumps([role.kind, role.part, steps, ledger.total(), seconds, blocked, clock])

    return told


class LiveRecord(threading.Thread):
    """Writes live.json until it is closed. What cannot be read or written is left for the next look."""

    def __init__(self, directory: Path, layout: RunLayout, read: Callable[[list[str]], list[bytes | None]]) -> None:
        """`read`: the store's values of keys, without waiting. Raises RuntimeError where the store has gone."""
        super().__init__(name="paceline-live", daemon=True)
        self._directory, self._ranks, self._read = directory, range(layout.world_size), read
        self._closing, self._looking = threading.Event(), threading.Lock()
        self._beats: dict[int, tuple[bytes | None, float]] = {}  # the last, and when it was first seen
        self.start()

    def run(self) -> None:
        while not self._closing.wait(pause(len(self._ranks))):
            with suppress(OSError, RuntimeError):
                self.look()

    def look(self) -> None:
        """Raises OSError or RuntimeError. Looks come one after another, also those that are asked for from outside."""
        with self._looking:
            told = self._read([f"gauges/{rank}" for rank in self._ranks])
            beats = self._read([f"beat/{rank}" for rank in self._ranks])
            each = zip(self._ranks, told, beats, strict=True)
            live_metrics = [self._gauge(rank, its, beat) for rank, its, beat in each if its]
            if live_metrics and not self._closing.is_set():
                write_live(self._directory, live_metrics)

    def _gauge(self, rank: int, told: bytes, beat: bytes | None) -> WorkerMetrics:
        now = time.monotonic()
        if beat != self._beats.get(rank, (b"", 0.0))[0]:
            self._beats[rank] = beat, now
        doing = json.loads(beat)[1] if beat else ""
        silent = now - self._beats[rank][1] if beat else 0.0
        return WorkerMetrics(rank, *json.loads(told), doing=doing, silent=round(silent, 1))

    def close(self) -> None:
        self._closing.set()
        self.join(TIMEOUT)
        forget_live(self._directory)


class Teller(threading.Thread):
    """Sends the live metrics of many workers in this process, from `live_metrics`, to the launcher's store, until it is
    closed.
    """

    def __init__(self, store: Endpoint, live_metrics: Callable[[], dict[int, str]]) -> None:
        super().__init__(name="paceline-teller", daemon=True)
        self._live_metrics, self._closing = live_metrics, threading.Event()
        self._store = StoreClient(store, 0, TIMEOUT)
        self.start()

    def run(self) -> None:
        told: dict[int, str] = {}
        while not self._closing.wait(pause(len(told))):
            told = self._live_metrics()
            with suppress(RuntimeError):
                self._store.multi_set([f"gauges/{rank}" for rank in told], [each.encode() for each in told.values()])

    def close(self) -> None:
        self._closing.set()
        self.join(TIMEOUT)
        self._store.close()
