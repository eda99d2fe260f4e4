"""Mirrors a run to a tracker from a process of its own, so that the tracker can neither slow nor stop training.

The helper process reads the run's metrics.jsonl itself: the trainer never waits for it. own_process.py has how it
begins and ends; wandb.py, mlflow.py and tensorboard.py have what it writes.
"""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from . import own_process
from .own_process import STOPPED
from .redact import hide_in_urls, redact
from .run_directory import Record, RunDirectory

FINISH_SECONDS = 45.0  # then the helper is killed; a store that has to be made first may take a while


class HelperMirror:
    """A sink that keeps a helper process running from the first record to `close`."""

    def __init__(
        self,
        label: str,
        module: str,
        directory: Path,
        config: dict[str, Any],
        start_at: int,
        finish_seconds: float | None = None,
        **settings: Any,
    ) -> None:
        """Starts nothing yet.

        Args:
            module: of this package, with a function `mirror(settings, finish)`
            start_at: the byte of the run's metrics.jsonl from which on it is mirrored
            finish_seconds: how long `close` waits; None: FINISH_SECONDS
        """
        self._label, self._log = label, directory / "logs" / f"{module}.log"
        self._finish_seconds = finish_seconds
        self._settings = {
            **settings,
            "label": label,
            "module": module,
            "directory": str(directory),
            "config": redact(config),
            "start_at": start_at,
        }
        self._helper: subprocess.Popen[bytes] | None = None

    def record(self, record: Record) -> None:
        """Starts the helper on the first record; later ones it reads itself."""
        if self._helper is None:
            self._helper = own_process.start(__name__, self._settings, self._log)
        own_process.relay(self._helper)

    def close(self, summary: dict[str, Any] | None) -> None:
        """Lets the helper finish. It reads the summary from the run's directory."""
        if self._helper is not None:
            helper, self._helper = self._helper, None
            own_process.finish(helper, self._label, self._finish_seconds or FINISH_SECONDS, self._log)


def main() -> None:
    """The helper process. Ends with os._exit: nothing that a library registered may hold it up."""
    settings, finish = own_process.begin()
    sys.stdout = sys.stderr  # what libraries print belongs to the log
    status = STOPPED
    try:
        mirror: Callable[[dict[str, Any], threading.Event], None]
        mirror = import_module(f".{settings['module']}", __package__).mirror
        mirror(settings, finish)
        status = 0
    except Exception as error:
        print_traceback(error)
        tell(f"{settings['label']}: stopped ({words_of(error)}); the results go on in {settings['directory']}")
    finally:
        sys.stderr.flush()
        os._exit(status)


def tell(line: str) -> None:
    """Says it to the user, through the trainer."""
    try:
        print(line, file=sys.__stdout__, flush=True)
    except OSError:  # the trainer no longer listens
        pass


def print_traceback(error: Exception) -> None:
    """Writes it to the log, without logins in URLs: a client's error may have the server's."""
    print(hide_in_urls("".join(traceback.format_exception(error))), file=sys.stderr)


def words_of(error: Exception) -> str:
    return hide_in_urls(f"{type(error).__name__}: {error}").splitlines()[0].rstrip(": ")


def final(directory: RunDirectory) -> tuple[dict[str, Any], dict[str, float]]:
    """The summary ({} where there is none), and the numbers of its row by the columns' keys."""
    from .compare import rows
    from .history import numbers

    summary = directory.read_summary() or {}
    return summary, numbers(rows([directory])[0]) if summary else {}
