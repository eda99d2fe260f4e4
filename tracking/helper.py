"""Mirrors a run to a tracker from a process of its own, so that the tracker can neither slow nor stop training.

As W&B's (wandb.py): the helper is told its settings over standard input, reads the run's metrics.jsonl itself, and ends
once it is told to finish and has written everything; without that word, or with its trainer, it ends at once.
"""

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .files import open_to_write
from .redact import hide_in_urls, redact
from .run_directory import Record, RunDirectory, writing
from .wandb import die_with, say

FINISH_SECONDS = 45.0  # then the helper is killed; a store that has to be made first may take a while
STOPPED = 70  # exit status of a helper that has told the user why


class HelperMirror:
    """A sink that keeps a helper process running from the first record to `close`."""

    def __init__(
        self, label: str, module: str, directory: Path, config: dict[str, Any], start_at: int, **settings: Any
    ) -> None:
        """`module`: of this package, with a function `mirror(settings, finish)`. `start_at`: a byte of the records."""
        self._label, self._log = label, directory / "logs" / f"{module}.log"
        self._settings = {
            **settings,
            "label": label,
            "module": module,
            "directory": str(directory),
            "config": redact(config),
            "start_at": start_at,
            "parent": os.getpid(),
        }
        self._helper: subprocess.Popen[bytes] | None = None

    def record(self, record: Record) -> None:
        """Starts the helper on the first record; later ones it reads itself."""
        if self._helper is None:
            self._helper = self._start()
        assert self._helper.stdout is not None
        say(self._helper.stdout.read() or b"")  # None: nothing yet

    def close(self, summary: dict[str, Any] | None) -> None:
        if self._helper is None:
            return
        helper, self._helper = self._helper, None
        try:
            said, _ = helper.communicate(b"finish\n", timeout=FINISH_SECONDS)
            say(said)
        except subprocess.TimeoutExpired:
            with helper:
                helper.kill()
            print(f"{self._label}: not finished after {FINISH_SECONDS:.0f} s, left as it is", file=sys.stderr)
            return
        if helper.returncode not in (0, STOPPED):
            print(f"{self._label}: stopped (exit status {helper.returncode}); see {self._log}", file=sys.stderr)

    def _start(self) -> subprocess.Popen[bytes]:
        with writing(self._log):
            opened = open_to_write(self._log)
        with os.fdopen(opened, "ab") as log:
            helper = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C on the terminal is the trainer's to handle
            )
        assert helper.stdin is not None and helper.stdout is not None
        helper.stdin.write(json.dumps(self._settings, default=str).encode() + b"\n")
        helper.stdin.flush()
        os.set_blocking(helper.stdout.fileno(), False)
        return helper


def main() -> None:
    """The helper process. Ends with os._exit: nothing that a library registered may hold it up."""
    settings = json.loads(sys.stdin.buffer.readline())
    die_with(settings["parent"])
    os.nice(5)  # it gives way to training
    words, sys.stdout = sys.stdout, sys.stderr  # what libraries print belongs to the log
    finish = threading.Event()
    threading.Thread(target=_watch, args=(finish,), daemon=True).start()
    mirror: Callable[[dict[str, Any], threading.Event], None] = import_module(
        f".{settings['module']}", __package__
    ).mirror
    status = STOPPED
    try:
        mirror(settings, finish)
        status = 0
    except Exception as error:
        traceback.print_exc()
        why = hide_in_urls(f"{type(error).__name__}: {error}").splitlines()[0]
        line = f"{settings['label']}: stopped ({why}); the results go on in {settings['directory']}"
        print(line, file=words, flush=True)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _watch(finish: threading.Event) -> None:
    if sys.stdin.buffer.readline() != b"finish\n":
        os._exit(1)
    finish.set()


def final(directory: RunDirectory) -> tuple[dict[str, Any], dict[str, float]]:
    """The summary ({} where there is none), and the numbers of its row by the columns' keys."""
    from .compare import rows
    from .history import numbers

    summary = directory.read_summary() or {}
    return summary, numbers(rows([directory])[0]) if summary else {}
