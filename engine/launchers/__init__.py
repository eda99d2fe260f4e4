"""Who starts the workers of a run: one file each. See base.py."""

import os
from typing import TYPE_CHECKING

from ..experiment import Experiment

if TYPE_CHECKING:
    from .base import Launcher

_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launcher_of(experiment: Experiment) -> "Launcher":
    """That of the fabric which `hardware` names; of processes, whoever has started this one as one of them, or we."""
    if experiment.hardware.fabric == "virtual":
        from .virtual import Virtual

        return Virtual()
    if was_started():
        from .torchrun import Torchrun

        return Torchrun()
    from .local import Local

    return Local()


def was_started() -> bool:
    """Whether torchrun, or another launcher that follows env://, has started this process as one of the workers."""
    return all(name in os.environ for name in _ENV)


def is_first() -> bool:
    """Whether it falls to this process to say what all of them would say, before it is known who is the chief."""
    return os.environ.get("RANK", "0") == "0"
