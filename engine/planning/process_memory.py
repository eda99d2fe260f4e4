"""Estimates the memory of a virtual cluster's process, in which all workers and servers live.

    bytes = BASE + n (WORKER + c held)

`held` is what a plan states of the largest worker. c is `AGREE` where replicas have the same weights, else `DIFFER`:
at the end they send theirs to the chief, which are in flight and copied. The coefficients were fitted on the peaks of
tests/engine/test_virtual_memory.py, and the estimates are 1.02 to 1.11 times these.
"""

from ...comm.shared_memory import available
from ...conf.errors import ConfigError
from ..fabrics import fabric_of
from .planned import Plan

PROCESSES = 4096  # of one host
MIB, GIB = 2**20, 2**30
BASE = 510 * MIB  # Python, torch, and a small data set
WORKER = 170 * 2**10  # its objects and its stack of calls
AGREE, DIFFER = 1.0, 2.2  # times what a worker holds


def process_memory(plan: Plan) -> int | None:
    """Returns bytes; None where workers are processes of their own."""
    if not fabric_of(plan.experiment).modelled:
        return None
    workers, times = plan.layout.world_size, DIFFER if plan.differ else AGREE
    return round(BASE + workers * (WORKER + times * plan.largest()))


def said_of_process(plan: Plan) -> str:
    """Returns the estimate and the host's free memory in words; "" where workers are processes of their own."""
    needed = process_memory(plan)
    if needed is None:
        return ""
    return f"estimated to take {needed / GIB:,.1f} GiB, and this host has {available() / GIB:,.1f} GiB free"


def lack_here(plan: Plan) -> str:
    """Returns why this host's memory cannot hold the worker that holds most; "" if it can, or the worker trains on a
    GPU, on a machine that is described, or where a scheduler starts it.
    """
    fabric, hardware = fabric_of(plan.experiment), plan.experiment.hardware
    is_here = not (fabric.modelled or fabric.submits) and hardware.machine is None and plan.device.type == "cpu"
    held, free = plan.largest(), available()
    if not is_here or held <= free:
        return ""
    return f"a worker holds {held / GIB:,.1f} GiB by the plan, and this host has {free / GIB:,.1f} GiB free"


def check_process(plan: Plan) -> None:
    """Checks that this host can have all workers that the run starts here. Raises `ConfigError`."""
    needed, layout, fabric = process_memory(plan), plan.layout, fabric_of(plan.experiment)
    if needed is None:
        if not fabric.submits and (here := fabric.processes_here(layout)) > PROCESSES:
            raise ConfigError(
                f"hardware.workers={layout.workers}: makes {here:,} processes on this host, and at most {PROCESSES:,} "
                "are started. Choose fewer workers, hardware=virtual, or a launcher that starts them on several hosts."
            )
        return
    if needed > available():
        raise ConfigError(
            f"hardware.workers={layout.workers}: a virtual cluster is one process, {said_of_process(plan)}. "
            "Choose fewer hardware.workers, a smaller model or a smaller batch_size."
        )
