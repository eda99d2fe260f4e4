"""Processes as the kernel sees them (/proc), for tests that kill and freeze."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MARK = "PACELINE_TEST_MARK"  # an environment variable that a launcher's descendants inherit, orphans too
T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float, what: str) -> T:
    """The first true value of `condition`, looked at every 20 ms. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs, sleeps or is stopped; a zombie is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def marked(mark: str) -> dict[int, str]:
    """The living processes that have `mark` in their environment, with their command lines."""
    found: dict[int, str] = {}
    for pid in _pids():
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and is_alive(pid):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def workers_of(run: Path) -> dict[int, int]:
    """rank -> pid of the run's living workers: those whose standard output is a worker's log."""
    found: dict[int, int] = {}
    for pid in _pids():
        try:
            log = Path(f"/proc/{pid}/fd/1").readlink()
        except OSError:
            continue
        if (match := re.fullmatch(r"worker-(\d+)\.log", log.name)) and log.parent == run / "logs" and is_alive(pid):
            found[int(match[1])] = pid
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
