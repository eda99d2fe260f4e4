"""Values as files hold them: numbers, NaN and infinities as text, sections within sections."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """A record's number; NaN and infinities are strings in JSON. None: it is none."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"):
        return float(value)
    known = plain_number(value)
    try:
        return None if known is None else float(known)
    except OverflowError:
        return None


def plain_number(value: Any) -> float | None:
    """A configuration's number: text stays text, and true is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON lacks, by the strings "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def flat(nested: dict[str, Any], separator: str = "/", whole: str = "", prefix: str = "") -> dict[str, Any]:
    """{"step_time": {"median": 1}} -> {"step_time/median": 1}; a section that has the key `whole` stays one value."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict) and not (whole and whole in value):
            found |= flat(value, separator, whole, f"{prefix}{key}{separator}")
        else:
            found[f"{prefix}{key}"] = value
    return found
