"""Timing two runs at once, one of them stopped while the other goes on, in short turns.

Runs of half a minute, one after the other, differed by 20 % on a machine whose cores a neighbour slows for a while;
turns of seconds meet the same machine.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Self

from tests.process_table import MARK, marked, until

from .measure import Outcome

SAID = "said.txt"  # all that a run prints
SLICE = 2.0  # seconds that one of the two has
LEFT_OUT = 2  # steps of a slice: the one that was stopped halfway, and one for the caches to be its own again
WARM_UP = 10  # steps
PATIENCE = 900  # seconds until the first steps; what DeepSpeed compiles comes before them


def in_slices(name: str, ours: "Timed", peer: "Timed", peer_name: str, target: str, rounds: int) -> Outcome:
    """The median step of both, and the median of the rounds' ratios; a round is a slice of each, in changing order."""
    for run in (ours, peer):
        run.wait_for(WARM_UP)
    for run in (ours, peer):
        run.stop()
    medians: list[tuple[float, float]] = []
    for i in range(rounds):
        if i % 2 == 0:
            one, other = ours.slice(), peer.slice()
        else:
            other, one = peer.slice(), ours.slice()
        medians.append((median(one), median(other)))
    ratios = [one / other for one, other in medians]
    middle_ours, middle_peer = (median(column) for column in zip(*medians, strict=True))
    return Outcome(name, middle_ours, middle_peer, peer_name, median(ratios), min(ratios), max(ratios), target)


class Timed:
    """A training run of several processes, in a folder of its own."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str], steps: Callable[[], list[float]]) -> None:
        """`steps()`: milliseconds of each step that it has done so far."""
        self.steps, self._mark, self._folder = steps, uuid.uuid4().hex, folder
        self._said = (folder / SAID).open("w")
        everyone = {**env, MARK: self._mark}
        self._process = subprocess.Popen(command, cwd=folder, env=everyone, stdout=self._said, stderr=self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        while marked(self._mark):
            self._send(signal.SIGKILL)
        self._process.wait()
        self._said.close()

    def wait_for(self, steps: int) -> None:
        try:
            until(lambda: self._has(steps), PATIENCE, f"{steps} steps")
        except AssertionError as error:
            raise RuntimeError(f"{error}: {self._end()}") from None

    def _has(self, steps: int) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended with {self._process.returncode}: {self._end()}")
        return len(self.steps()) >= steps

    def _end(self) -> str:
        return (self._folder / SAID).read_text()[-3000:]

    def stop(self) -> None:
        self._send(signal.SIGSTOP)

    def slice(self) -> list[float]:
        """Go on for a while; the steps of it, in milliseconds. Raises `RuntimeError` when there were none."""
        before = len(self.steps())
        self._send(signal.SIGCONT)
        time.sleep(SLICE)
        self.stop()
        self._has(0)
        steps = self.steps()[before + LEFT_OUT :]
        if not steps:
            raise RuntimeError(f"a slice of {SLICE:g} s has no more than {LEFT_OUT} steps: {self._end()}")
        return steps

    def _send(self, number: int) -> None:
        for pid in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
