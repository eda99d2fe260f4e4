"""Records the environment of a run: versions, commit, machine. Never environment variables or argv: they hold
secrets.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "deepspeed", "numpy", "hydra-core", "wandb", "pydantic", "safetensors", "scikit-learn")
COMMAND_SECONDS = 10
_FILTER = re.compile(r"^(local|worktree)\s+filter\..*\.(clean|process)$", re.M)  # a command that the folder names


def environment() -> dict[str, Any]:
    """Plain values, ready for JSON. What cannot be found out is None or empty; nothing is raised.

    Memory is in bytes, a GPU's too.
    """
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git": _git(),
        "hostname": socket.gethostname(),
        "os": platform.platform(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count(), "usable": _usable_cpus()},
        "memory": _memory(),
        "gpus": _gpus(),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit that the current directory is at, and whether tracked files differ from it.

    The folder may be somebody else's, and its .git/config may name commands: a monitor of files, filters, submodules'
    own, transports that fetch what is missing. None of them runs; where there are filters, nobody knows of changes.
    """
    commit = _output("git", "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    settings = _output("git", "config", "--list", "--show-scope", "--name-only")  # None by a git before 2.26
    if settings is None or _FILTER.search(settings):
        return {"commit": commit, "dirty": None}
    looks = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    changes = _output("git", "--no-optional-locks", "-c", "core.fsmonitor=false", *looks)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    query = "--query-gpu=name,memory.total,driver_version"
    lines = _output("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    rows = [[field.strip() for field in line.split(",")] for line in lines.splitlines()]
    return [
        {"name": name, "memory": int(mebibytes) << 20 if mebibytes.isdigit() else None, "driver": driver}
        for name, mebibytes, driver in (row for row in rows if len(row) == 3)
    ]


def _output(*command: str) -> str | None:
    """Returns the output of the command, or None when it is missing, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"GIT_ALLOW_PROTOCOL": "none"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
