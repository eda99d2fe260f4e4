"""The memory that the most loaded device needs with its runtime, beside what published runs of the software held."""

from dataclasses import dataclass
from math import ceil

from ...cost.published import PublishedMemory, held_by
from ..planning.planned import Plan
from .fit import PROCESS, SHARE, capacity_of, need_of


@dataclass(frozen=True)
class DeviceUse:
    """Memory of the device that needs most, in bytes.

    Args:
        held: what it needs, with what is kept back for the runtime and the allocator.
        device_memory: the memory of a device.
        published: how much runs of the same software held beside their predictions; None where none are known.
    """

    held: int
    device_memory: int
    published: PublishedMemory | None

    @property
    def fits(self) -> bool:
        return self.held <= self.device_memory

    @property
    def beyond_margin(self) -> int:
        """Returns the bytes that a device lacks for the high end of the range; 0 or less if the margin is left."""
        return int(self.held * (self.published.margin if self.published else 1.0)) - self.device_memory

    @property
    def range(self) -> tuple[int, int] | None:
        its = self.published
        return None if its is None else (int(its.low * self.held), int(its.high * self.held))


def device_use(need: int, device_memory: int, software: str) -> DeviceUse:
    return DeviceUse(ceil((need + PROCESS) / (1 - SHARE)), device_memory, held_by(software))


def device_use_of(plan: Plan) -> DeviceUse | None:
    """Returns None where no accelerators are described, or none computes."""
    machine = plan.experiment.hardware.machine
    if machine is None or not machine.devices:
        return None
    capacity = capacity_of(plan)
    if capacity.device is None:
        return None
    need = need_of(plan, capacity).device
    return device_use(need, machine.device_memory, plan.strategy.traits.software)
