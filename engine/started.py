"""Whether this process is one of several that torchrun, or another launcher that follows env://, has started."""

import os

from .errors import ConfigError

_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
UNSET = "If no launcher started this process, unset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


def was_started() -> bool:
    return all(name in os.environ for name in _ENV)


def is_first() -> bool:
    """Whether it falls to this process to say what all of them would say, before it is known who is the chief."""
    return not was_started() or os.environ["RANK"] == "0"


def place() -> tuple[int, int]:
    """This process's rank, and the number of processes. Raises `ConfigError` for variables that no launcher sets."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    numbers = rank.isdecimal() and size.isdecimal() and os.environ["MASTER_PORT"].isdecimal()
    if not numbers or not int(rank) < int(size):
        told = ", ".join(f"{name}={os.environ[name]}" for name in _ENV)
        raise ConfigError(f"{told}: no launcher sets these in the environment. {UNSET}")
    return int(rank), int(size)
