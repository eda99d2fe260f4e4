"""A process of a tracker's own, so that the tracker can neither slow nor stop training.

    trainer --- standard input: the settings, then "finish" ---> the tracker's process

It ends once it is told to finish and has written everything; without that word, or with its trainer, it ends at once.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from .files import open_to_write
from .run_directory import writing
from .visible import visible

STOPPED = 70  # exit status of one that has told the user why
PR_SET_PDEATHSIG = 1

_said: set[str] = set()  # by this process: the runs of a sweep have the same to say


# -- in the trainer


def start(module: str, settings: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
    """`module`: in full, with a function `main()`, which calls `begin`. Raises what `writing` does."""
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = open_to_write(log)
    with os.fdopen(opened, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,  # Ctrl-C on the terminal is the trainer's to handle
        )
    assert process.stdin is not None and process.stdout is not None
    told = {**settings, "parent": os.getpid()}
    process.stdin.write(json.dumps(told, default=str).encode() + b"\n")
    process.stdin.flush()
    os.set_blocking(process.stdout.fileno(), False)
    return process


def relay(process: subprocess.Popen[bytes]) -> None:
    """Prints what it has to say to the user."""
    assert process.stdout is not None
    say(process.stdout.read() or b"")  # None: nothing yet


def finish(process: subprocess.Popen[bytes], label: str, seconds: float, log: Path) -> None:
    """Lets it finish; after `seconds` it is killed. `label`: the tracker, in what is said."""
    try:
        said, _ = process.communicate(b"finish\n", timeout=seconds)
        say(said)
    except subprocess.TimeoutExpired:
        with process:  # waits for it and closes the pipes; a child of its own may hold the other end for a moment
            process.kill()
        print(f"{label}: not finished after {seconds:.0f} s, left as it is", file=sys.stderr)
        return
    if process.returncode not in (0, STOPPED):
        print(f"{label}: stopped (exit status {process.returncode}); see {log}", file=sys.stderr)


def say(text: bytes) -> None:
    for line in text.decode(errors="replace").splitlines():
        if line not in _said:
            _said.add(line)
            print(visible(line), file=sys.stderr, flush=True)


# -- in the tracker's process


def begin() -> tuple[dict[str, Any], threading.Event]:
    """The settings, and what is set when it is told to finish. It gives way to training."""
    settings = json.loads(sys.stdin.buffer.readline())
    _die_with(settings["parent"])
    os.nice(5)
    told = threading.Event()
    threading.Thread(target=_watch, args=(told,), daemon=True).start()
    return settings, told


def _die_with(parent: int) -> None:
    """The kernel kills this process when the trainer dies (Linux; elsewhere standard input ends).

    It does so already when the trainer's thread that started this process ends: the mirror's, which waits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _watch(told: threading.Event) -> None:
    if sys.stdin.buffer.readline() != b"finish\n":
        os._exit(1)
    told.set()
