"""Classes that moved since the version before. Runs that it stored are read, shown and resumed."""

from typing import Any

MOVED = {  # the beginning of a class's name -> the beginning now
    "paceline.strategies.exchange.": "paceline.exchange.",
    "paceline.engine.stragglers.": "paceline.engine.fabrics.stragglers.",
    "paceline.strategies.sync.bsp.NaiveBSP": "paceline.strategies.sync.bsp_naive.NaiveBSP",
    "paceline.strategies.schedules.base.": "paceline.strategies.core.schedule.",
}


def moved(target: str) -> str:
    """Returns the name that the class has now."""
    return next((now + target.removeprefix(then) for then, now in MOVED.items() if target.startswith(then)), target)


def renewed(stored: Any) -> Any:
    """Returns a stored configuration, or a part of one, with the names that classes have now."""
    if isinstance(stored, dict):
        return {key: moved(value) if _is_target(key, value) else renewed(value) for key, value in stored.items()}
    return [renewed(each) for each in stored] if isinstance(stored, list) else stored


def _is_target(key: str, value: Any) -> bool:
    return key == "target" and isinstance(value, str)
