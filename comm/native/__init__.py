"""Native code, compiled once on each machine, for that machine, by the C compiler that is there.

What is compiled is kept in the user's cache, under a name that follows from the source, the compiler's flags and the
processor. Where there is no compiler, or no place to keep it, `load` gives None, and callers go another way.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ..private import NotPrivateError, others_may_write, private, user_cache

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fno-trapping-math", "-std=gnu11", "-shared", "-fPIC", "-pthread")
SECONDS = 60  # that a compiler may take; it takes one


class NativeCodeError(RuntimeError):
    """Native code cannot be compiled here; the message says why."""


@cache
def load(name: str) -> ctypes.CDLL | None:
    """The library of `name`.c in this folder; None where it cannot be had."""
    try:
        return _made(name)
    except (OSError, RuntimeError):  # others can write there, there is no room or no home, or nothing may be run there
        return None


def why_not(name: str) -> str:
    """Returns why `load` gives None, in words that follow a bracket; "" if it gives a library."""
    if load(name) is not None:
        return ""
    try:
        _made(name)
    except OSError as error:
        where = f"{error.filename2 or error.filename}: " if error.strerror and error.filename else ""
        return f"{where}{error.strerror or error}"
    except RuntimeError as error:
        return str(error)
    return "it could not be made before"


def load_or_say(name: str, instead: str) -> ctypes.CDLL | None:
    """Returns `load(name)`; if it is None, says what happens instead, such as "torch computes distances"."""
    if (library := load(name)) is None:
        why = why_not(name)
        print(f"{instead}, which is slower than native code ({why}): see paceline doctor", file=sys.stderr, flush=True)
    return library


def _made(name: str) -> ctypes.CDLL:
    """Raises `OSError`, or `RuntimeError` where there is no home or no compiler that does it."""
    source = Path(__file__).with_name(f"{name}.c")
    told = "\n".join([source.read_text(), *FLAGS, platform.machine(), _processor()])
    kept_as = f"{name}-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.so"
    library = private(user_cache("native")) / kept_as
    if library.exists():
        with suppress(OSError):
            return _loaded(library)
        library.unlink(missing_ok=True)  # it is damaged: made again
    compiler = next((found for known in COMPILERS if (found := shutil.which(known))), None)
    if compiler is None:
        raise NativeCodeError(f"there is no C compiler: none of {', '.join(COMPILERS)} is in PATH")
    _compile(compiler, source, library)
    return _loaded(library)


def _loaded(library: Path) -> ctypes.CDLL:
    """Raises `OSError` for what is no library, or a link, or another user's."""
    found = library.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or others_may_write(found):
        raise NotPrivateError(f"{library} is not this user's alone")
    return ctypes.CDLL(str(library))


def _compile(compiler: str, source: Path, library: Path) -> None:
    """One process at a time; what is there under its name is whole. Raises `OSError` or `NativeCodeError`."""
    with (library.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=library.parent) as made:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return
        out = Path(made) / library.name
        try:
            done = subprocess.run(
                [compiler, *FLAGS, str(source), "-o", str(out)], capture_output=True, timeout=SECONDS, cwd=made
            )
        except subprocess.TimeoutExpired:
            raise NativeCodeError(f"{compiler} took more than {SECONDS} s") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
            raise NativeCodeError(f"{compiler} failed: {said[-1][:200]}")
        with out.open("rb") as whole:
            os.fsync(whole)  # before it has its name
        out.replace(library)


def _processor() -> str:
    """Returns the features of the processor by which -march=native chooses."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return ""
