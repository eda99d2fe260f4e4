"""Whether this process is one of several that torchrun, or another launcher that follows env://, has started."""

import os

_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def was_started() -> bool:
    return all(name in os.environ for name in _ENV)


def is_first() -> bool:
    """Whether it falls to this process to say what all of them would say, before it is known who is the chief."""
    return os.environ.get("RANK", "0") == "0"
