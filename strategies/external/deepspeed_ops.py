"""DeepSpeed's CPU Adam, which is compiled once on each machine, for a minute or two, by torch and ninja.

torch would keep it by its name alone, and compile it again for each virtual environment, as its command has the paths
of one. Here environments with the same Python, torch, DeepSpeed, compiler and processor share a folder of this user's,
and load the compiled file as it is.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from ...comm.private import NotPrivateError, private
from ...compat.deepspeed import preload
from ...compat.extensions import build_directory
from ..core.errors import MissingToolError
from ..core.protocols import Say

OP = "cpu_adam"  # as DeepSpeed calls it
WHAT = "DeepSpeed's CPU Adam"
USUAL = "usually 60 to 120 s"
BUILT = "built"  # a file beside the compiled one: it is whole


def build_ops(say: Say) -> None:
    """Compile DeepSpeed's CPU Adam unless that was done; torch keeps what it compiles. Raises `MissingToolError`."""
    from torch.utils.cpp_extension import get_cxx_compiler

    use_own_folder()
    try:
        folder = build_directory(OP)
        lock = (folder.parent / f"{OP}.paceline.lock").open("w")
    except OSError as error:
        raise MissingToolError(
            f"strategy.offload: there is no place for DeepSpeed's CPU Adam, which is compiled once: {error}; name a "
            "folder that can be written to in TORCH_EXTENSIONS_DIR"
        ) from None
    with lock:  # one of us at a time
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process, which compiles DeepSpeed's CPU Adam")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_built(folder):
            return
        compiler = get_cxx_compiler()
        if shutil.which(compiler) is None:
            raise MissingToolError(
                f"strategy.offload: DeepSpeed compiles its CPU Adam, and there is no {compiler} here; "
                "on Debian: apt-get install g++"
            )
        say(f"compiling {WHAT} for this machine, once; {USUAL}")
        (folder / "lock").unlink(missing_ok=True)  # of one that was stopped; torch would wait for it for ever
        start = time.perf_counter()
        said = _compile(lambda: say(f"compiling {WHAT}: {time.perf_counter() - start:.0f} s, {USUAL}", moves=True))
        if said is not None:
            raise MissingToolError(f"DeepSpeed's CPU Adam cannot be compiled here:\n{said}")
        (folder / BUILT).touch()
        say(f"compiled in {time.perf_counter() - start:.0f} s; kept in {folder}")


def _is_built(folder: Path) -> bool:
    return (folder / f"{OP}.so").exists() and (folder / BUILT).exists()


def load_built() -> None:
    """Has DeepSpeed use what was compiled, by whichever environment. Without it, DeepSpeed compiles by itself."""
    folder = build_directory(OP)
    if _is_built(folder):
        preload(OP, folder / f"{OP}.so")


def _compile(still_at_it: Callable[[], None]) -> str | None:
    """Compiles in a process of its own, and returns its error; None if all went well.

    The compilers end with this process, whatever ends it.
    """
    command = "from paceline.strategies.zero import load_ops; load_ops()"
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            stdin=subprocess.PIPE,  # closed when we are gone
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as build:
            try:
                while build.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        build.wait(1.0)
                    if build.poll() is None:
                        still_at_it()
            except BaseException:
                os.killpg(build.pid, signal.SIGTERM)
                raise
        said.seek(0)
        return _gist(said.read()) if build.returncode else None


def _gist(said: str) -> str:
    """Returns the first three errors of the compiler, or the last three lines if there are none."""
    lines = said.strip().splitlines()
    return "\n".join([line for line in lines if "error:" in line][:3] or lines[-3:])


def _extensions() -> Path:
    """Returns the folder of what this user's environments of the same versions compile."""
    from torch.utils.cpp_extension import get_default_build_root

    made_from = sys.version, torch.__version__, version("deepspeed"), _compiler(), _processor()
    name = f"paceline-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]}"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    return root if root.name == name else root / name


def _compiler() -> tuple[str, ...]:
    from torch.utils.cpp_extension import get_cxx_compiler

    name = get_cxx_compiler()
    found = Path(os.path.realpath(shutil.which(name) or name))
    with suppress(OSError):
        there = found.stat()
        return str(found), str(there.st_size), str(there.st_mtime_ns)
    return (str(found),)


def _processor() -> str:
    """Returns the instructions of this processor, for which DeepSpeed has it compiled (-march=native)."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    return platform.machine()


def use_own_folder() -> None:
    """Have torch find ninja, and what was compiled for these versions, before DeepSpeed is imported.

    Raises `MissingToolError` where another user could put code of his own there.
    """
    tools = str(Path(sys.executable).parent)
    if tools not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([tools, os.environ["PATH"]])
    folder = _extensions()
    try:
        folder = private(folder)
    except NotPrivateError as error:
        raise MissingToolError(
            f"TORCH_EXTENSIONS_DIR={folder}: DeepSpeed loads code from there, and {error}. Name a folder that only you "
            "can write"
        ) from None
    except OSError:
        pass  # where there is no place at all, `build_ops` says so
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)


def end_with_parent() -> None:
    """Ends this process, which compiles in a session of its own, and its compilers when its parent is gone."""

    def watch() -> None:
        os.read(0, 1)  # ends when the other end of the pipe is closed
        os.killpg(0, signal.SIGTERM)  # ninja ends the compilers, which have groups of their own

    threading.Thread(target=watch, daemon=True).start()
