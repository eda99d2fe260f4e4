"""How the learning rate goes over a run: one file a schedule, each a pure function of the step."""

from ..core.schedule import Horizon, Rate, Scaled, Schedule, Unscheduled, WarmedUp, scaled

__all__ = ["Horizon", "Rate", "Scaled", "Schedule", "Unscheduled", "WarmedUp", "scaled"]
