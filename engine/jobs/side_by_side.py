"""Runs several commands side by side, until all have ended, and passes SIGTERM on to them.

    python -m paceline.engine.jobs.side_by_side FILE COUNT WORD ... COUNT WORD ...

Ends with the first exit status that is not 0. Its commands end with it: the kernel kills them. FILE is there once the
processes of all commands have met: a command that fails before ends the others, which would wait for it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..base.parent_death import die_with_parent

GRACE = 20.0  # seconds in which the others may fail for the same reason
PAUSE = 0.1


def main(words: list[str]) -> int:
    """Run the commands; returns the exit status."""
    die_with_parent(signal.SIGKILL)
    running: list[subprocess.Popen[bytes]] = []
    meeting, words = Path(words[0]), words[1:]

    def pass_on(number: int, _: object) -> None:
        for each in running:
            with suppress(ProcessLookupError):
                os.kill(each.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    while words:
        count = int(words[0])
        command, words = words[1 : 1 + count], words[1 + count :]
        running.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(signal.SIGKILL))
        )
    return status_of(running, meeting)


def status_of(running: Sequence[subprocess.Popen[bytes]], meeting: Path) -> int:
    """Waits for all, or for the first that fails before they have met; returns the exit status."""
    deadline = None
    while True:
        statuses = [each.poll() for each in running]
        failed = next((abs(status) for status in statuses if status), 0)
        if None not in statuses:
            return failed
        if failed and not meeting.exists():
            deadline = deadline or time.monotonic() + GRACE
            if time.monotonic() > deadline:
                return failed
        time.sleep(PAUSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
