"""How the learning rate goes over a run: one file a schedule, each a pure function of the step."""

from .base import Horizon, Schedule, Unscheduled, WarmedUp

__all__ = ["Horizon", "Schedule", "Unscheduled", "WarmedUp"]
