"""Hints of a class to the conformance suite."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Trial:
    """The settings under which the conformance suite tries a class fairly. Nothing else reads it."""

    beside: Mapping[str, object] = field(default_factory=dict)  # overrides without which it is refused
    alone: Mapping[str, object] = field(default_factory=dict)  # knobs without which it does not run on one replica
    of_64: Mapping[str, object] = field(default_factory=dict)  # overrides with which 64 workers learn digits
    optimizer: Mapping[str, object] = field(default_factory=dict)  # overrides, where it steps with its own alone
    model: Mapping[str, object] = field(default_factory=dict)  # overrides, of a strategy that takes images alone
    accuracy_lost: float = 0.02  # at most, to serial training on digits
    rounding: float = 1e-12  # from serial training in float64, where only the order of sums differs
    slow: bool = False  # it takes seconds to begin
