"""Schedules of the learning rate over a run: one file each, a pure function of the step."""

from ..core.schedule import Horizon, Rate, Scaled, Schedule, Unscheduled, WarmedUp, scaled

__all__ = ["Horizon", "Rate", "Scaled", "Schedule", "Unscheduled", "WarmedUp", "scaled"]
