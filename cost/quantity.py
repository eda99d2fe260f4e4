"""A number with what it means and where it came from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    symbol: str  # in the formula
    name: str
    value: float
    unit: str
    source: str  # given by whom, or who published it and when
