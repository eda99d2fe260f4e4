"""Buy devices or rent them: what a dollar gets done.

    work of a year   W = n X 31,536,000 s u     n devices of X flops a second, at work for a share u of the year
    owning           D = price d + running      US dollars a year
    renting          D = rent 8,760 h u         US dollars a year: on demand, hours without work are not paid for
    PFLOP a dollar   W / 10^15 / D

Depreciation is straight-line: a machine loses the same share d of its price in each year, so d = 25 % writes it off
in four. What it costs beside its price (power, cooling, hosting, people) is in `running`.
"""

from .rules import check
from .training_time import YEAR

HOURS = YEAR / 3600  # 8,760
PFLOP = 1e15


def work_of_a_year(devices: float, flops: float, occupancy: float) -> float:
    """Flops in a year; `flops`: of one device in a second. Raises `CostError`."""
    check(devices=devices, flops=flops, occupancy=occupancy)
    return devices * flops * YEAR * occupancy


def owning(price: float, depreciation: float, running: float = 0.0) -> float:
    """US dollars a year; `price` of all devices together, `running` a year. Raises `CostError`."""
    check(price=price, depreciation=depreciation, running=running)
    return price * depreciation + running


def renting(price_per_hour: float, occupancy: float) -> float:
    """US dollars a year; `price_per_hour` of all devices together. Raises `CostError`."""
    check(price_per_hour=price_per_hour, occupancy=occupancy)
    return price_per_hour * HOURS * occupancy


def pflop_per_dollar(work: float, dollars: float) -> float:
    """`work`: flops. Both of the same time. `dollars` > 0."""
    return work / PFLOP / dollars


def break_even(owning: float, renting: float, occupancy: float) -> float:
    """The occupancy from which on owning costs less; above 1: renting always does.

    `owning` and `renting`: US dollars a year at `occupancy`. Renting is proportional to it, owning does not change.
    Raises `CostError`.
    """
    check(owning=owning, renting=renting, occupancy=occupancy)
    return owning / renting * occupancy
