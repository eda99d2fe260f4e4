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


@cache
def load(name: str) -> ctypes.CDLL | None:
    """The library of `name`.c in this folder; None where it cannot be had."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = next((found for known in COMPILERS if (found := shutil.which(known))), None)
    told = "\n".join([source.read_text(), *FLAGS, platform.machine(), _processor()])
    kept_as = f"{name}-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.so"
    try:
        library = private(user_cache("native")) / kept_as
        if library.exists():
            with suppress(OSError):
                return _loaded(library)
            library.unlink(missing_ok=True)  # it is damaged: made again
        if compiler is None or not _compile(compiler, source, library):
            return None
        return _loaded(library)
    except (OSError, RuntimeError):  # others can write there, there is no room or no home, or nothing may be run there
        return None


def load_or_say(name: str, instead: str) -> ctypes.CDLL | None:
    """Returns `load(name)`; if it is None, says what happens instead, such as "torch computes distances"."""
    if (library := load(name)) is None:
        print(f"{instead}, which is slower than native code: see paceline doctor", file=sys.stderr, flush=True)
    return library


def _loaded(library: Path) -> ctypes.CDLL:
    """Raises `OSError` for what is no library, or a link, or another user's."""
    found = library.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or others_may_write(found):
        raise NotPrivateError(f"{library} is not this user's alone")
    return ctypes.CDLL(str(library))


def _compile(compiler: str, source: Path, library: Path) -> bool:
    """One process at a time; what is there under its name is whole."""
    with (library.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=library.parent) as made:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return True
        out = Path(made) / library.name
        try:
            done = subprocess.run(
                [compiler, *FLAGS, str(source), "-o", str(out)], capture_output=True, timeout=SECONDS, cwd=made
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != 0:
            return False
        with out.open("rb") as whole:
            os.fsync(whole)  # before it has its name
        out.replace(library)
        return True


def _processor() -> str:
    """Returns the features of the processor by which -march=native chooses."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return ""
