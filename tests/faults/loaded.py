"""Commands in processes that have torch at hand, one for each thread; one that dies or hangs is replaced."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

SECONDS = 60.0  # for one command on a busy machine

_of_this_thread = threading.local()  # its process: one that dies must not take along what another thread tries
_pools: list[ProcessPoolExecutor] = []  # kept until the end: Python's exit stumbles over one that went with its thread


def answer(words: list[str], place: Path | None = None) -> tuple[int, str]:
    """Returns the exit status of `paceline WORDS` and its output. `place`: the current directory; None leaves it."""
    return asked(_command_in, [str(place or "."), *words])


def asked(function: Callable[[list[str]], str], words: list[str]) -> tuple[int, str]:
    """Returns the status and the text that `function` gives as JSON in such a process; -1 where it died or hung."""
    pool: ProcessPoolExecutor | None = getattr(_of_this_thread, "pool", None)
    if pool is None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "paceline.engine.planning.make_plan", "paceline.cli.main"])
        pool = _of_this_thread.pool = ProcessPoolExecutor(1, mp_context=context, initializer=silence)
        _pools.append(pool)
    try:
        status, said = json.loads(pool.submit(function, words).result(SECONDS))
    except (TimeoutError, BrokenProcessPool) as error:
        _of_this_thread.pool = None
        for process in (pool._processes or {}).values():
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        return -1, f"{type(error).__name__}: the process hung or died"
    return status, said


def silence() -> None:
    """Sends output that bypasses sys.stdout to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _command_in(words: list[str]) -> str:
    os.chdir(words[0])
    return command(words[1:])


def command(words: list[str]) -> str:
    """Returns the exit status of `paceline WORDS` and its output, as JSON."""
    import contextlib
    import io
    import sys

    from paceline.cli.main import main

    said = io.StringIO()
    sys.argv = ["paceline", *words]
    status: Any = 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            status = end.code
    return json.dumps([status if isinstance(status, int) else 0, said.getvalue()])
