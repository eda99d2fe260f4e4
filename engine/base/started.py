"""Tells whether this process is one of several that torchrun, or another launcher that follows env://, has started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...conf.errors import ConfigError

_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")  # other launchers than torchrun need not set them
TOLD = (*_ENV, *_LOCAL)
LAST_PORT = 65535
DRY_RUN = "PACELINE_DRY_RUN"  # workers that a wrapped script is to be for: see wrap/dry_run.py
RESUMES = "PACELINE_RESUME"  # a wrapped script goes on with its run
UNSET = "If no launcher started this process, unset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


def was_started() -> bool:
    return all(name in os.environ for name in _ENV)


def is_submitted() -> bool:
    """Returns whether this is a process of a scheduler's job."""
    from ...comm.rendezvous import job_folder  # loads torch

    return job_folder() is not None


def is_first() -> bool:
    """Returns whether this process prints messages that all of them share, before it is known who is the chief."""
    return not was_started() or os.environ["RANK"] == "0"


def place() -> tuple[int, int]:
    """Returns this process's rank, and the number of processes. Raises `ConfigError` for variables that no launcher
    sets.
    """
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    numbers = rank.isdecimal() and size.isdecimal() and os.environ["MASTER_PORT"].isdecimal()
    local, each = os.environ.get("LOCAL_RANK") or "0", os.environ.get("LOCAL_WORLD_SIZE") or ""
    fits = local.isdecimal() and (not each or (each.isdecimal() and int(local) < int(each)))
    if not numbers or not fits or not int(rank) < int(size) or int(os.environ["MASTER_PORT"]) > LAST_PORT:
        told = ", ".join(f"{name}={os.environ[name]}" for name in TOLD if name in os.environ)
        raise ConfigError(f"{told}: no launcher sets these in the environment. {UNSET}")
    return int(rank), int(size)


@contextmanager
def may_be_left_over() -> Iterator[None]:
    """Adds to the error of processes that cannot meet how to unset the variables, in case no launcher set them."""
    from ...comm.errors import HangError, RendezvousError, TokenError  # loads torch

    try:
        yield
    except (HangError, RendezvousError, TokenError) as error:
        if "TORCHELASTIC_RUN_ID" not in os.environ and not is_submitted():
            error.args = (f"{error}. {UNSET}",)
        raise
