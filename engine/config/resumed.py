"""The overrides that `--resume` takes: a stored run goes on as it was, but for a few keys."""

from typing import Any

from pydantic import ValidationError

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...tracking.redact import HIDDEN
from .compose import compose
from .experiment import Experiment, explain
from .typed import check_grammar

RESUMABLE = (
    "epochs",
    "steps",
    "target_accuracy",
    "evaluate",
    "checkpoint",
    "callbacks",
    "tracking",
    "hardware",
    "launcher",
    "strategy",
)


def override_stored(experiment: Experiment, overrides: list[str]) -> Experiment:
    """Returns a stored run's experiment with overrides of what a resumed run may change. Raises `ConfigError`."""
    plain = experiment.model_dump()
    read = zip(overrides, check_grammar(overrides), strict=True)
    for text, override in sorted(read, key=lambda each: "." in each[1].get_key_element()):  # a choice, then its keys
        path = override.get_key_element().split(".")
        if path[0] in BY_NAME and len(path) > 1:
            path.insert(1, "knobs")  # where an experiment keeps them
        if path[0] == "callbacks" and len(path) > 2:
            path.insert(2, "knobs")
        if not _is_hidden(plain, path) and path[0] not in RESUMABLE:
            raise ConfigError(f"{text}: a resumed run goes on as it was; only {', '.join(RESUMABLE)} may change")
        section = plain
        for name in path[:-1]:
            section = section.get(name) if isinstance(section, dict) else None
        if not isinstance(section, dict) or path[-1] not in section:
            raise ConfigError(f"{override.get_key_element()}: there is no such key in the stored run")
        if path in (["tracking"], ["launcher"], ["strategy"]) and isinstance(override.value(), str):
            plain[path[0]] = compose([text]).model_dump()[path[0]]
            continue
        if isinstance(keys := section[path[-1]], dict):
            if not keys:
                raise ConfigError(f"{text}: a resumed run goes on as it was, and it has no {path[-1]}")
            key = "timeout" if "timeout" in keys else next(iter(keys))  # of hardware, the first says which choice it is
            raise ConfigError(
                f"{text}: a resumed run keeps its choice of {path[-1]}; its keys may change, for instance "
                f"{path[-1]}.{key}=..."
            )
        section[path[-1]] = override.value()
    for key in hidden_keys(plain):
        raise ConfigError(f"{key}: looked like a secret and was not stored with the run; give it again: {key}=...")
    try:
        return Experiment.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _is_hidden(plain: Any, path: list[str]) -> bool:
    for name in path:
        plain = plain.get(name) if isinstance(plain, dict) else None
    return HIDDEN in str(plain)


def hidden_keys(node: Any, path: str = "") -> list[str]:
    """Returns the keys of an experiment, as plain values, whose values were hidden when it was stored. Keys are as
    typed.
    """
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in hidden_keys(value, f"{path}.{key}".strip("."))]
    return [path.replace(".knobs.", ".")] if HIDDEN in str(node) else []
