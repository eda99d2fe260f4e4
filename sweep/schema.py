"""A sweep in W&B's schema: https://docs.wandb.ai/models/sweeps/define-sweep-configuration.

The same file runs under `wandb agent`; what cannot be done here is refused by its name, never passed over.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError
from ..conf.grammar import as_override
from ..tracking.errors import TableError
from ..tracking.figures.request import FigureRequest, in_description
from ..tracking.files import UnusableFileError, read_yaml
from ..tracking.text import did_you_mean
from .definition import (
    METHODS,
    Condition,
    Definition,
    EarlyTermination,
    Range,
    Space,
    Values,
    from_dict,
    paired,
    ranged,
)

_KEYS = ("program", "method", "parameters", "metric", "early_terminate", "run_cap", "command", "name", "description")
_ELSEWHERE = ("project", "entity", "controller", "imageuri", "image_uri", "job", "scheduler", "settings", "prior_runs")
_ONLY_OPTIONS = "only the options --config-dir and --allow-module may stand in a sweep's command, each with its value"
LARGEST_EXPONENT = 700  # of e that a float holds


def from_file(path: Path) -> Definition:
    """Raises `ConfigError`, naming what is not supported."""
    try:
        plain = read_yaml(path)
        if isinstance(plain, dict) and "fixed" in plain:  # a sweep's own sweep.yaml, which W&B's schema cannot say
            return from_dict(plain)
        return from_schema(plain)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnusableFileError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_schema(plain: Any) -> Definition:
    """A sweep in W&B's schema. Raises `ConfigError`."""
    if not isinstance(plain, dict):
        raise ConfigError("must be a mapping with method and parameters, as W&B's sweep schema has it")
    for key in plain:
        if key in _ELSEWHERE:
            raise ConfigError(f"{key}: is not supported by paceline sweep (tracking.{key} may be)")
        if key not in _KEYS:
            raise ConfigError(f"{key}: there is no such key in W&B's sweep schema; {_nearest(str(key), _KEYS)}")
    method = plain.get("method")
    if method not in METHODS:
        raise ConfigError(f"method={method}: must be one of {', '.join(METHODS)}")
    _check_program(plain.get("program"))
    parameters, constants, conditions = _parameters(plain.get("parameters"))
    metric, maximize = _metric(plain.get("metric"), method)
    command = _command(plain.get("command"))
    keys = {*parameters, *(text.partition("=")[0] for text in constants)}
    for text in command.fixed:
        if text.partition("=")[0] in keys:
            raise ConfigError(f"command: {text}: stands under parameters, too; leave one of them out")
    _check_reached(conditions, (*command.fixed, *constants))
    return Definition(
        method,
        parameters,
        (*command.fixed, *constants),
        metric,
        maximize,
        _early(plain.get("early_terminate")),
        _count("run_cap", plain.get("run_cap")),
        None,
        command.config_dir,
        command.allow_modules,
        _figures(plain.get("description")),
        when=conditions,
    )


def _figures(description: Any) -> tuple[str, ...]:
    """W&B's schema has no place for figures: they are lines of the description that begin with --figure."""
    texts = in_description(description)
    try:
        for text in texts:
            FigureRequest.parse(text)
    except TableError as error:
        raise ConfigError(f"description: {error}") from None
    return tuple(texts)


def _check_program(program: Any) -> None:
    if program is not None and Path(str(program)).name != "paceline":
        raise ConfigError(f"program={program}: must be paceline; other programs are for wandb agent")


def _metric(metric: Any, method: str) -> tuple[str, bool]:
    if metric is None:
        if method == "bayes":
            raise ConfigError("metric: is missing; method=bayes needs one, such as {name: accuracy, goal: maximize}")
        return "accuracy", True
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise ConfigError(f"metric={metric}: must have a name, such as {{name: accuracy, goal: maximize}}")
    for key in metric.keys() - {"name", "goal"}:
        raise ConfigError(f"metric.{key}: is not supported; metric has name and goal")
    goal = metric.get("goal", "minimize")  # W&B's default
    if goal not in ("minimize", "maximize"):
        raise ConfigError(f"metric.goal={goal}: must be minimize or maximize")
    return metric["name"], goal == "maximize"


def _early(early: Any) -> EarlyTermination | None:
    if early is None:
        return None
    if not isinstance(early, dict):
        raise ConfigError(f"early_terminate={early}: must be a mapping, such as {{type: hyperband, min_iter: 1}}")
    if early.get("type") != "hyperband":
        raise ConfigError(f"early_terminate.type={early.get('type')}: must be hyperband")
    for key in early.keys() - {"type", "min_iter", "max_iter", "s", "eta"}:
        raise ConfigError(f"early_terminate.{key}: is not supported; there are min_iter, or max_iter and s, and eta")
    eta = _count("early_terminate.eta", early.get("eta", 3))
    least, most, brackets = (_count(f"early_terminate.{key}", early.get(key)) for key in ("min_iter", "max_iter", "s"))
    if eta is None or eta < 2:
        raise ConfigError(f"early_terminate.eta={eta}: must be at least 2")
    if least is None and (most is None or brackets is None):
        raise ConfigError("early_terminate: needs min_iter, or max_iter and s")
    if least is None:
        assert most is not None and brackets is not None
        least = most
        for _ in range(min(brackets, most.bit_length())):  # most / eta^brackets
            least //= eta
        least = max(1, least)
    return EarlyTermination(least, eta)


def _count(key: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{key}={value}: must be a whole number from 1 on")
    return value


@dataclass(frozen=True)
class _Command:
    fixed: tuple[str, ...] = ()
    config_dir: str | None = None
    allow_modules: tuple[str, ...] = ()


def _command(command: Any) -> _Command:
    """The overrides and options that stand in the command beside what is swept."""
    if command is None:
        raise ConfigError(
            "command: is missing; a file that wandb agent runs too needs [${program}, train, ${args_no_hyphens}]"
        )
    words = [word for word in _words(command) if word not in ("${env}", "/usr/bin/env")]
    if words[:1] not in (["${program}"], ["paceline"]) or words[1:2] != ["train"]:
        raise ConfigError(f"command={' '.join(words)}: must begin with ${{program}} train")
    found = _Command()
    rest = iter(words[2:])
    swept = False
    for word in rest:
        if word == "${args_no_hyphens}":
            swept = True
        elif word.startswith("${"):
            raise ConfigError(f"command: {word}: is not supported; paceline takes ${{args_no_hyphens}}")
        elif word in ("--config-dir", "--allow-module") and (value := next(rest, "")) and value[0] not in "-$":
            module = word == "--allow-module"
            changed = {"allow_modules": (*found.allow_modules, value)} if module else {"config_dir": value}
            found = replace(found, **changed)
        elif word.startswith("-"):
            raise ConfigError(f"command: {word}: {_ONLY_OPTIONS}")
        else:
            found = replace(found, fixed=(*found.fixed, word))
    if not swept:
        raise ConfigError("command: lacks ${args_no_hyphens}, where what is swept goes")
    return found


def _words(command: Any) -> list[str]:
    if isinstance(command, list):
        return [str(word) for word in command]
    try:
        return shlex.split(command)
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"command={command}: must be a list of words, or one line of them") from None


# -- parameters

_LOG = {"log_uniform", "log_uniform_values"}
_RANGES = {"uniform", "q_uniform", "int_uniform", *_LOG}
_KNOWN = {"constant", "categorical", *_RANGES}


def _parameters(plain: Any) -> tuple[dict[str, Space], list[str], tuple[tuple[str, Condition], ...]]:
    """(What varies, overrides for what does not, when what varies does.)"""
    if not isinstance(plain, dict) or not plain:
        raise ConfigError(f"parameters={plain}: must name what is swept")
    spaces: dict[str, Space] = {}
    constants: list[str] = []
    conditions: dict[str, Condition] = {}
    for key, given in _flat(plain, "").items():
        parameter = {name: value for name, value in given.items() if name != "when"}
        group = _zip(key, parameter) if "zip" in parameter else {}
        if "when" in given:
            conditions |= dict.fromkeys(group or [key], _condition(key, given["when"]))
        if group:
            if twice := group.keys() & spaces.keys():
                raise ConfigError(f"parameters.{key}.zip: {min(twice)} is there twice")
            spaces |= group
        elif "value" in parameter or parameter.get("distribution") == "constant":
            _check_keys(key, parameter, {"value", "distribution"})
            if "when" in given:
                raise ConfigError(f"parameters.{key}.when: a constant has no condition. Choose values: [...].")
            if "value" not in parameter or parameter.get("distribution", "constant") != "constant":
                raise ConfigError(f"parameters.{key}: value and distribution=constant go together, alone")
            constants.append(f"{key}={as_override(parameter.get('value'), exact=False)}")
        elif key in spaces:
            raise ConfigError(f"parameters.{key}: is there twice")
        else:
            spaces[key] = _space(key, parameter)
    if not spaces:
        raise ConfigError("parameters: every one is constant; nothing is swept")
    spaces = {key: spaces[key] for key in _ordered(list(spaces), conditions)}
    return spaces, constants, tuple((key, so) for key, so in conditions.items() if key in spaces)


def _check_reached(conditions: tuple[tuple[str, Condition], ...], fixed: tuple[str, ...]) -> None:
    """Raises `ConfigError` for a parameter that the file's own fixed values keep from being swept."""
    values = {key: value for key, _, value in (text.partition("=") for text in fixed)}
    for key, condition in conditions:
        for other, texts in condition:
            if other in values and values[other] not in texts:
                raise ConfigError(
                    f"parameters.{key}.when.{other}={texts[0]}: {other} is fixed to {values[other]}, so that {key} is "
                    f"never swept. Choose when: {{{other}: {values[other]}}}, or values for {other}."
                )


def _ordered(keys: list[str], conditions: dict[str, Condition]) -> list[str]:
    """Each parameter after those that its condition names, otherwise in the file's order."""
    found: list[str] = []
    while keys:
        ready = [key for key in keys if not any(other in keys for other, _ in conditions.get(key, ()))]
        found += ready[:1] or keys  # conditions in a circle: the check refuses them
        keys = [key for key in keys if key not in found]
    return found


def _zip(key: str, parameter: dict[str, Any]) -> dict[str, Space]:
    """`zip: {optimizer.lr: [0.1, 0.05], batch_size: [64, 128]}`. W&B's schema has nothing like it."""
    _check_keys(key, parameter, {"zip"})
    group = parameter["zip"]
    if not isinstance(group, dict) or not all(isinstance(values, list) for values in group.values()):
        raise ConfigError(f"parameters.{key}.zip={group}: must be keys, each with a list of values")
    return paired({str(name): [as_override(value, exact=False) for value in values] for name, values in group.items()})


def _condition(key: str, plain: Any) -> Condition:
    """`when: {sync: [ssp, asp]}`. W&B's schema has nothing like it."""
    if not isinstance(plain, dict) or not plain or [] in plain.values():
        raise ConfigError(f"parameters.{key}.when={plain}: must be keys with values, such as {{sync: [ssp, asp]}}")
    listed = {str(other): values if isinstance(values, list) else [values] for other, values in plain.items()}
    return tuple((other, tuple(as_override(value, exact=False) for value in each)) for other, each in listed.items())


def _flat(plain: dict[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    """Nested `parameters` by dotted keys: {"optimizer": {"parameters": {"lr": ...}}} is optimizer.lr."""
    found: dict[str, dict[str, Any]] = {}
    for name, parameter in plain.items():
        key = f"{prefix}{name}"
        if not isinstance(parameter, dict):
            raise ConfigError(f"parameters.{key}={parameter}: must have values, min and max, or value")
        if "parameters" in parameter:
            _check_keys(key, parameter, {"parameters"})
            if not isinstance(parameter["parameters"], dict):
                raise ConfigError(f"parameters.{key}.parameters: must be a mapping")
            inner = _flat(parameter["parameters"], f"{key}.")
        else:
            inner = {key: parameter}
        for twice in inner.keys() & found.keys():
            raise ConfigError(f"parameters.{twice}: is there twice")
        found |= inner
    return found


def _space(key: str, parameter: dict[str, Any]) -> Space:
    kind = parameter.get("distribution")
    if "probabilities" in parameter:
        raise ConfigError(f"parameters.{key}.probabilities: are not supported; values are drawn alike")
    if kind is not None and (not isinstance(kind, str) or kind not in _KNOWN):
        raise ConfigError(
            f"parameters.{key}.distribution={kind}: is not supported; there are {', '.join(sorted(_KNOWN))}"
        )
    if "values" in parameter:
        _check_keys(key, parameter, {"values", "distribution"})
        if kind not in (None, "categorical"):
            raise ConfigError(f"parameters.{key}.distribution={kind}: takes min and max, not values")
        values = parameter["values"]
        if not isinstance(values, list) or not values:
            raise ConfigError(f"parameters.{key}.values={values}: must be a list of at least one")
        return Values(tuple(dict.fromkeys(as_override(value, exact=False) for value in values)))
    _check_keys(key, parameter, {"min", "max", "q", "distribution"})
    if kind == "categorical":
        raise ConfigError(f"parameters.{key}.distribution=categorical: takes values, not min and max")
    low, high, q = parameter.get("min"), parameter.get("max"), parameter.get("q")
    for name, bound in (("min", low), ("max", high)):
        if not _is_number(bound):
            as_text = "; YAML takes 1e-3 for text, and 1.0e-3 for a number" if isinstance(bound, str) else ""
            raise ConfigError(f"parameters.{key}.{name}={bound}: must be a number; or give values{as_text}")
    if kind is None:
        kind = "int_uniform" if isinstance(low, int) and isinstance(high, int) else "uniform"
    return _ranged(key, kind, low, high, q)


def _ranged(key: str, kind: str, low: Any, high: Any, q: Any) -> Range:
    steps = kind.startswith("q_")
    if steps and q is None:
        q = 1
    if q is not None and (not steps or not _is_number(q) or q <= 0):
        raise ConfigError(f"parameters.{key}.q={q}: must be a number above 0, and is for distribution=q_uniform")
    if q is not None and q > high - low > 0:
        raise ConfigError(f"parameters.{key}.q={q}: is more than lies between min={low} and max={high}")
    if kind == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
        raise ConfigError(f"parameters.{key}: distribution=int_uniform takes whole numbers as min and max")
    if kind == "log_uniform":  # bounds are exponents of e
        if max(abs(low), abs(high)) > LARGEST_EXPONENT:
            raise ConfigError(
                f"parameters.{key}: distribution=log_uniform takes exponents of e, from -{LARGEST_EXPONENT} to "
                f"{LARGEST_EXPONENT}; log_uniform_values takes the bounds themselves"
            )
        low, high = math.exp(low), math.exp(high)
    if steps and q is not None:  # W&B rounds what it draws to multiples of q
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first >= last:
            raise ConfigError(
                f"parameters.{key}.q={q}: takes multiples of q between min={low} and max={high}, and there are not two"
            )
        low, high = (float(f"{each * q:.12g}") if isinstance(q, float) else each * q for each in (first, last))
    if kind != "int_uniform" and not steps:
        low, high = float(low), float(high)
    return ranged(key, low, high, q, kind in _LOG)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _check_keys(key: str, parameter: dict[str, Any], valid: set[str]) -> None:
    for name in parameter:
        if name not in valid:
            raise ConfigError(f"parameters.{key}.{name}: is not supported here; {_nearest(str(name), sorted(valid))}")


def _nearest(name: str, valid: Sequence[str]) -> str:
    return did_you_mean(name, valid, 0.6) or f"valid: {', '.join(valid)}"
