"""What the numbers of this room may be: one table, for its functions and for the options of `paceline cost`."""

import math
from dataclasses import dataclass


class CostError(ValueError):
    """A number that no such thing has: name, value and rule."""

    exit_code = 2


@dataclass(frozen=True)
class Rule:
    """A number from `low` to `high`; `above`: greater than `low`; `whole`: an integer."""

    low: float
    high: float
    above: bool = False
    whole: bool = False

    def holds(self, value: float) -> bool:
        if not math.isfinite(value) or (self.whole and value != int(value)):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        least = f"greater than {self.low:,g}" if self.above else f"at least {self.low:,g}"
        return f"must be {'a whole number, ' if self.whole else ''}{least} and at most {_plain(self.high)}"


def _plain(value: float) -> str:
    return f"{value:,g}" if value < 1e6 else f"{value:g}".replace("e+", "e")


MOST = 1e18  # where a number of parameters, tokens or flops a second is a mistake
SHARE = Rule(0, 1, above=True)
DOLLARS = Rule(0, 1e12, above=True)
RULES = {
    "parameters": Rule(1, MOST),
    "tokens": Rule(1, MOST),
    "devices": Rule(1, 1e7, whole=True),
    "machines": Rule(1, 1e6, whole=True),
    "flops": Rule(0, MOST, above=True),  # of one device in a second
    "flops_per_parameter": Rule(1, 1000),
    "seconds": Rule(0, MOST),
    "price_per_hour": Rule(0, 1e6, above=True),  # US dollars
    "occupancy": SHARE,
    "depreciation": SHARE,  # of the price, a year
    "price": DOLLARS,
    "running": Rule(0, 1e12),  # US dollars a year
    "owning": DOLLARS,  # a year
    "renting": DOLLARS,  # a year
    "work": Rule(0, 1e7, above=True),  # hours; more than a thousand years
    "interval": Rule(0, 1e7, above=True),  # hours
    "between": Rule(0, 1e7, above=True),  # hours
    "checkpoint": Rule(0, 1e4, above=True),  # hours
    "restart": Rule(0, 1e4),  # hours
    "hours": Rule(0, 1e7, above=True),
    "watts": Rule(0, 1e5, above=True),  # of one device
    "utilisation": SHARE,
    "pue": Rule(1, 10),
    "intensity": Rule(0, 5),  # kg of CO2e a kWh; coal is near 1
    "kwh": Rule(0, MOST),
}


def check(**values: float) -> None:
    """Raises `CostError` for the first that breaks its rule in `RULES`."""
    for name, value in values.items():
        if not RULES[name].holds(value):
            raise CostError(f"{name}={value:g}: {RULES[name]}")
