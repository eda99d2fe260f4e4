"""Numbers on the command line: 300e9, 300B, 50%, 90s, with the rule that each is held to."""

import re
from dataclasses import dataclass

from ..conf.errors import ConfigError
from ..cost.quantity import Quantity
from ..cost.rules import RULES, SHARE

SCALES = {"": 1.0, "%": 0.01, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0}
LONGEST = 30  # characters
DOLLARS = "US$"  # how the unit of money begins


@dataclass(frozen=True)
class Number:
    """A number that an option (`--tokens`) or a key (`tokens`) takes.

    Args:
        symbol: its name in formulas
        rule: its name in cost/rules.py
        unit: hours if it is given with a unit of time
    """

    name: str
    symbol: str
    rule: str
    unit: str
    meaning: str

    def read(self, text: str | None) -> Quantity | None:
        """Returns the number. Raises `ConfigError` with name, value and rule."""
        if text is None:
            return None
        value = self._value(text)
        rule = RULES[self.rule]
        if not rule.holds(value):
            after = " hours" if self.unit == "hours" else ", such as 50% or 0.5" if rule is SHARE else ""
            raise ConfigError(f"{self._given(text)}: {rule}{after}")
        return Quantity(self.symbol, self.name.removeprefix("--"), value, self.unit, "given")

    def missing(self) -> ConfigError:
        return ConfigError(f"{self.name}: is missing. It is {self.meaning}")

    def _given(self, text: str) -> str:
        from ..tracking.text import shown

        return f"{self.name}{' ' if self.name.startswith('--') else '='}{shown(text, LONGEST)}"

    def _value(self, text: str) -> float:
        is_time = self.unit == "hours"
        plain = self._in_dollars(text) if self.unit.startswith(DOLLARS) else text.strip()
        scales = HOURS if is_time else SCALES
        found = re.fullmatch(r"([-+]?[\d._]*\d\.?(?:[eE][-+]?\d+)?)([a-zA-Z%]*)", plain, re.ASCII)
        try:
            assert len(text) <= LONGEST and found is not None
            return float(found[1]) * scales[found[2]]
        except (AssertionError, ValueError, KeyError):
            example = (
                "a number with a unit: 90s, 10min, 24h or 3d" if is_time else "a number such as 300e9, 300B or 0.5"
            )
            raise ConfigError(f"{self._given(text)}: must be {example}") from None

    def _in_dollars(self, text: str) -> str:
        """`5000USD` and `$5000` are 5000. Raises `ConfigError` for another currency."""
        plain = text.strip().removeprefix("$").removesuffix("USD").strip()
        if re.search(r"[€£¥]|\d\s*[A-Z]{3}$", plain):
            raise ConfigError(f"{self._given(text)}: prices are in US dollars. Give it in them, such as 5000USD")
        return plain


def short(value: float) -> str:
    """Returns at most six digits: 144, 55,534, 3e11."""
    text = f"{value:,.6g}"
    return text.replace("e+", "e").replace("e0", "e")


TOKENS = Number("--tokens", "T", "tokens", "tokens", "how many are trained on, such as 20e9 or 20B")
