"""Classes that have another module or name than in an earlier version. Runs stored then are read, shown and resumed."""

from typing import Any

MOVED = {  # the beginning of a class's name -> the beginning now
    "paceline.strategies.exchange.": "paceline.exchange.",
    "paceline.engine.stragglers.": "paceline.engine.fabrics.stragglers.",
    "paceline.strategies.sync.bsp.NaiveBSP": "paceline.strategies.sync.bsp_naive.NaiveBSP",
    "paceline.strategies.schedules.base.": "paceline.strategies.core.schedule.",
}
RENAMED = {  # (a package or module, the former name of a class in it) -> its name now
    ("paceline.exchange.attack", "Constant"): "ConstantAttack",
    ("paceline.exchange.client", "Plain"): "PlainClient",
    ("paceline.exchange.compress", "BFloat16"): "WireBFloat16",
    ("paceline.exchange.compress", "Float16"): "WireFloat16",
    ("paceline.exchange.privacy", "Open"): "NoPrivacy",
    ("paceline.exchange.server", "Plain"): "PlainServer",
    ("paceline.strategies.schedules.linear", "Linear"): "LinearDecay",
    ("paceline.tasks.adversarial.training", "Plain"): "StandardTraining",
}


def moved(target: str) -> str:
    """Returns the full name that the class has now."""
    target = next((now + target.removeprefix(then) for then, now in MOVED.items() if target.startswith(then)), target)
    module, _, name = target.rpartition(".")
    for (package, then), now in RENAMED.items():
        if name == then and f"{module}.".startswith(f"{package}."):
            return f"{module}.{now}"
    return target


def renewed(stored: Any) -> Any:
    """Returns a stored configuration, or a part of one, with the names that classes have now."""
    if isinstance(stored, dict):
        return {key: moved(value) if _is_target(key, value) else renewed(value) for key, value in stored.items()}
    return [renewed(each) for each in stored] if isinstance(stored, list) else stored


def _is_target(key: str, value: Any) -> bool:
    return key == "target" and isinstance(value, str)
