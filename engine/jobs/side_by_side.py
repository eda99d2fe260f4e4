"""Runs several commands side by side, until all have ended, and passes SIGTERM on to them.

    python -m paceline.engine.jobs.side_by_side COUNT WORD ... COUNT WORD ...

Ends with the first exit status that is not 0. Its commands end with it: the kernel kills them.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from ..base.parent_death import die_with_parent


def main(words: list[str]) -> int:
    """Run the commands; returns the exit status."""
    die_with_parent(signal.SIGKILL)
    running: list[subprocess.Popen[bytes]] = []

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
    statuses = [each.wait() for each in running]
    return next((abs(status) for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
