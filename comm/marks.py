"""Moments on a worker's device, in the order of what it does there.

A CPU does as it is told at once, so that a moment is a time. A GPU does it later: a moment is an event in the current
stream, whose time is known once the GPU has come to it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch


class DeviceEvent(Protocol):
    """Has what is used of `torch.cuda.Event`."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Returns whether the device has come to the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Returns the milliseconds until `end_event`. The device must have come to both."""
        ...


Mark = float | DeviceEvent


def events_of(device: torch.device) -> Callable[[], DeviceEvent] | None:
    """Returns what makes events of `device`; None for a CPU."""
    return _cuda_event if device.type == "cuda" else None


def _cuda_event() -> DeviceEvent:
    return torch.cuda.Event(enable_timing=True)


def recorded(event: DeviceEvent) -> DeviceEvent:
    event.record()
    return event


def seconds_between(start: DeviceEvent, end: DeviceEvent) -> float:
    return start.elapsed_time(end) / 1e3
