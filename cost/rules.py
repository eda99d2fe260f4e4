"""The valid ranges of this room's numbers: one table, for its functions and for the options of `paceline cost`."""

import math
import re
from dataclasses import dataclass


class CostError(ValueError):
    """A number that no such thing has: name, value and rule."""

    exit_code = 2


@dataclass(frozen=True)
class NumberRule:
    """A number from `low` to `high`; `whole`: an integer."""

    low: float
    high: float
    whole: bool = False

    def holds(self, value: float) -> bool:
        if not math.isfinite(value) or (self.whole and value != int(value)):
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        whole = "a whole number, " if self.whole else ""
        return f"must be {whole}at least {_plain(self.low)} and at most {_plain(self.high)}"


def _plain(value: float) -> str:
    text = f"{value:,g}" if 1e-6 <= value < 1e6 else f"{value:g}"
    return re.sub(r"e([+-])0*", lambda found: "e" + found[1].strip("+"), text)


LEAST = 1e-9  # where a number above 0 is a mistake, too
MOST = 1e18  # where a number of parameters, tokens or flops a second is a mistake
SHARE = NumberRule(LEAST, 1)
DOLLARS = NumberRule(LEAST, 1e12)
HOURS = NumberRule(1e-4, 1e7)  # a third of a second to more than a thousand years
RULES = {
    "parameters": NumberRule(1, MOST),
    "tokens": NumberRule(1, MOST),
    "devices": NumberRule(1, 1e7, whole=True),
    "machines": NumberRule(1, 1e6, whole=True),
    "flops": NumberRule(1, MOST),  # of one device in a second
    "flops_per_parameter": NumberRule(1, 1000),
    "seconds": NumberRule(0, MOST),
    "price_per_hour": NumberRule(LEAST, 1e6),  # US dollars
    "occupancy": SHARE,
    "depreciation": SHARE,  # of the price, a year
    "price": DOLLARS,
    "running": NumberRule(0, 1e12),  # US dollars a year
    "owning": DOLLARS,  # a year
    "renting": DOLLARS,  # a year
    "work": HOURS,
    "interval": HOURS,
    "between": HOURS,
    "checkpoint": NumberRule(1e-6, 1e4),
    "restart": NumberRule(0, 1e4),
    "hours": HOURS,
    "watts": NumberRule(LEAST, 1e5),  # of one device
    "utilisation": SHARE,
    "pue": NumberRule(1, 10),
    "intensity": NumberRule(0, 5),  # kg of CO2e a kWh; coal is near 1
    "kwh": NumberRule(0, MOST),
    "storage": NumberRule(1, MOST),  # bytes a second of one worker
}


def check(**values: float) -> None:
    """Raises `CostError` for the first that breaks its rule in `RULES`."""
    for name, value in values.items():
        if not RULES[name].holds(value):
            raise CostError(f"{name}={value:g}: {RULES[name]}")
