"""The ends of the workers of one attempt: each worker that fails writes a file, and the supervisor reads them all."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...tracking.run_directory import RunDirectory, write_atomically
from ..launch.launching import cause_among
from ..launch.local_workers import Ended

STOPPED = "InterruptedRunError"
# errors of workers that were killed or have lost others
LOST = ("PeerLostError", "HangError", "TooFewClientsError", "Killed")


def say(attempt: Path, rank: int, words: dict[str, Any]) -> None:
    """Write down how worker `rank` ended, in `words` of an `Ended`."""
    with suppress(OSError):
        (attempt / "ends").mkdir(exist_ok=True)
        write_atomically(attempt / "ends" / f"worker-{rank:03d}.json", json.dumps(words))


def said(attempt: Path) -> list[Ended]:
    """Returns the ends that the workers of an attempt have written; a worker that was killed writes none."""
    ends: list[Ended] = []
    for file in sorted((attempt / "ends").glob("worker-*.json")):
        with suppress(OSError, ValueError, TypeError):
            ends.append(Ended.from_words(int(file.stem.removeprefix("worker-")), json.loads(file.read_text())))
    return ends


@dataclass(frozen=True)
class AttemptEnd:
    """The end of one attempt.

    `kind`: "completed"; "stopped", as it was asked to; "failed", by an error of the program; "lost", by an error from
    outside.
    """

    kind: str
    exit_code: int
    message: str

    @classmethod
    def of(cls, attempt: Path, run: RunDirectory, status: int) -> "AttemptEnd":
        """Returns the end of an attempt. `status`: the exit status of the command that started all workers."""
        summary = run.read_summary()
        if summary is not None and summary["status"] in ("completed", "failed"):
            return cls("completed", 0, "")
        ends = [each for each in said(attempt) if each.failed]
        stopped = [each for each in ends if each.error == STOPPED]
        own = [each for each in ends if each.error not in (STOPPED, *LOST)]
        if own:
            cause = cause_among(own)
            return cls("failed", cause.exit_code, cause.message)
        if stopped:
            return cls("stopped", stopped[0].exit_code, stopped[0].message)
        why = cause_among(ends).message if ends else f"its processes ended with status {status} and said nothing"
        return cls("lost", 4, f"a worker was lost: {why}")
