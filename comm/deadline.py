"""The timeout of a wait, without the time in which this process was suspended."""

import time

from .key_values import BEAT


class Deadline:
    """Counts the seconds of a wait, which looks at its deadline every `BEAT` or more often.

    A longer time between two looks counts as `BEAT`: SLURM, a paused container or a shell has suspended this process,
    and most likely its peers, which need the rest of the timeout.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._looked = seconds, time.monotonic()

    def left(self) -> float:
        """Returns the seconds that are left, 0 at least."""
        now = time.monotonic()
        self._left = max(self._left - min(now - self._looked, BEAT), 0.0)
        self._looked = now
        return self._left
