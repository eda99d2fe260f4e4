"""The cores and GPUs that the trials of a sweep share on this machine."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..engine.fabrics import fabric_of
from ..engine.planning.planned import Plan


class Room:
    """The machine's cores and GPUs; a run that wants more than there are takes them all."""

    def __init__(self, cores: int, devices: Sequence[str] = ()) -> None:
        """`devices`: as CUDA_VISIBLE_DEVICES names them."""
        self._cores, self._free = cores, cores
        self._devices, self._idle = tuple(devices), list(devices)
        self._closed = False
        self._change = threading.Condition()

    @contextmanager
    def taken(self, cores: int, devices: int = 0) -> Iterator[tuple[str, ...]]:
        """Waits for so many cores and devices; gives the devices, which are nobody else's meanwhile."""
        cores, devices = min(cores, self._cores), min(devices, len(self._devices))
        with self._change:
            self._change.wait_for(lambda: (self._free >= cores and len(self._idle) >= devices) or self._closed)
            self._free -= cores
            given, self._idle = tuple(self._idle[:devices]), self._idle[devices:]
        try:
            yield given
        finally:
            with self._change:
                self._free += cores
                self._idle = sorted([*self._idle, *given], key=self._devices.index)
                self._change.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._change:
            self._closed = True
            self._change.notify_all()


def wants(plan: Plan) -> tuple[int, int]:
    """Cores and GPUs. Workers on GPUs mostly wait for them: no core is counted."""
    if plan.experiment.hardware.fabric == "virtual":
        return 1, 0
    if fabric_of(plan.experiment).submits:
        return 0, 0
    if plan.device.type == "cuda":
        return 0, plan.layout.workers
    return plan.layout.world_size * plan.threads, 0


def visible_devices() -> list[str]:
    """The names of this process's GPUs, as its own CUDA_VISIBLE_DEVICES has them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(i) for i in range(count)])[:count]
