"""The definition of a sweep, as the words of a command line give it."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError
from ..engine.config.compose import compose
from ..engine.config.experiment import CONF, Experiment, VirtualHardware
from ..engine.config.metric import metric_of
from ..engine.config.overrides import usual_choices
from ..engine.config.receivers import check_definition
from ..engine.config.swept import ParameterInterval, sweep_values
from ..engine.config.typed import after
from ..tracking.columns import BY_KEY, COLUMNS, METRICS, known
from ..tracking.disturbance import is_timed
from ..tracking.records import Measured, Summary
from ..tracking.text import did_you_mean
from .definition import Definition, Paired, Range, Space, Values, check, larger_is_better, paired, ranged, texts_of
from .schema import from_file

OWN_NUMBERS = ("callbacks", "experiment", "task")  # groups whose choices may bring metrics of other names
READY = CONF.parent / "sweeps"  # beside conf, in a clone and as installed
_ZIP = "'zip(optimizer.lr=0.1,0.05; batch_size=64,128)'"  # how it is written
_READY = re.compile(r"(?:sweeps/)?((?:studies/)?[\w-]{1,80})(?:\.yaml)?", re.ASCII)


def define(arguments: Sequence[str], **changes: Any) -> Definition:
    """Returns the definition that words of a command line give: a file first, if any, then overrides, which win.

    `changes`: of the definition's fields, None where nothing is to change. Raises `ConfigError`.
    """

    is_of_overrides = False
    if arguments and (file := file_of(arguments[0])) is not None:
        definition = from_file(file)
        _check_receivers(arguments[0], definition, _unzipped(arguments[1:]))
        definition = _changed(definition, arguments[1:], changes.get("config_dir") or definition.config_dir)
    else:
        is_of_overrides = True
        definition = from_overrides(arguments, changes.get("config_dir"))
        ranges = any(isinstance(space, Range) for space in definition.parameters.values())
        if ranges and changes.get("trials"):  # so many of them are looked for, not the first so many
            definition = replace(definition, method="bayes")
    given = {field: value for field, value in changes.items() if value not in (None, ())}
    goes_by_another = "metric" in given and given["metric"] != definition.metric
    definition = replace(definition, **given)
    reported = _reported(definition)
    if goes_by_another and "maximize" not in given:
        of_task = dict([reported] if reported else [])
        larger = of_task[definition.metric] if definition.metric in of_task else larger_is_better(definition.metric)
        definition = replace(definition, maximize=larger)
    check(definition)
    _check_price(definition)
    _check_times(definition)
    if reported is None:
        return definition
    metric, larger = reported
    _check_measured(definition, metric)
    if is_of_overrides and "metric" not in given:
        return replace(definition, metric=metric, maximize=larger)
    if definition.metric in METRICS and metric != definition.metric:
        raise ConfigError(
            f"metric={definition.metric}: these runs report {metric} instead, which is their task's; "
            f"--metric {metric} goes by it"
        )
    return definition


def file_of(word: str) -> Path | None:
    """The file that the first word of a sweep names: one that is here, or a ready one, `sweeps/NAME.yaml` or NAME.

    None: it is no file.
    """
    path = Path(word)
    is_yaml = "=" not in word and path.suffix in (".yaml", ".yml")
    if is_yaml and path.exists():
        return path
    found = _READY.fullmatch(word)
    if found is not None and (ready := READY / f"{found[1]}.yaml").is_file():
        return ready
    return path if is_yaml else None


def _check_receivers(file: str, definition: Definition, given: Sequence[str]) -> None:
    """Raises `ConfigError` where the file alone says who receives its runs' results."""
    texts = [*definition.fixed, *(text for _, way in definition.ways for text in way)]
    told = [(sweep_values(text)[0], text.partition("=")[2]) for text in texts]
    told += [(key, value) for key, space in definition.parameters.items() for value in texts_of(space)]
    plain = [(key.lstrip("+~"), value.strip("'\"")) for key, value in told]
    check_definition(file, plain, {sweep_values(text)[0].lstrip("+~") for text in given})


def _reported(definition: Definition) -> tuple[str, bool] | None:
    """The metric of the task of all its runs, and whether larger is better; None where they are judged by a column that
    is no task's, or tasks are swept.
    """
    if "task" in definition.parameters or (known(definition.metric) and definition.metric not in METRICS):
        return None
    try:
        return metric_of(_composed(definition), definition.allow_modules)
    except ConfigError:
        return None  # each point is checked later, and says why


def _composed(definition: Definition) -> Experiment:
    return compose(list(definition.fixed), Path(definition.config_dir) if definition.config_dir else None)


def _check_measured(definition: Definition, of_task: str) -> None:
    """Raises `ConfigError` where no run can have a number of the metric's name. Those of callbacks are known later."""
    metric = definition.metric
    names = {of_task, *(field.name for record in (Summary, Measured) for field in fields(record))}
    if known(metric) or metric in names or "/" in metric:
        return
    if _groups_of(definition) & {*OWN_NUMBERS} or _composed(definition).callbacks:
        return
    near = did_you_mean(metric, [of_task, *BY_KEY, *(column.short for column in COLUMNS if column.short)], 0.6)
    raise ConfigError(
        f"metric={metric}: these runs have no such number; "
        f"{near or f'choose {of_task}, loss or throughput, or add the callback that measures it'}"
    )


def _groups_of(definition: Definition) -> set[str]:
    """Returns the first words of the keys that are swept."""
    keys = [*definition.parameters, *(sweep_values(text)[0] for _, texts in definition.ways for text in texts)]
    return {key.lstrip("+").partition(".")[0] for key in keys}


def _check_price(definition: Definition) -> None:
    """Raises `ConfigError` where runs are judged by their price, and none of them has one."""
    if definition.metric != "dollars" or "hardware" in _groups_of(definition):
        return
    machine = _composed(definition).hardware.machine
    if machine is None or machine.price_per_hour is None:
        raise ConfigError(
            "metric=dollars: these runs have no price, so that none is better than another. Choose a machine, such as "
            "hardware=laptop, and its hardware.machine.price_per_hour=DOLLARS"
        )


def _check_times(definition: Definition) -> None:
    """Raises `ConfigError` where modelled and measured times would lead one search."""
    if definition.method != "bayes" or not is_timed(definition.metric) or "hardware" not in definition.parameters:
        return
    kinds: dict[bool, str] = {}
    for hardware in texts_of(definition.parameters["hardware"]):
        with suppress(ConfigError):  # such a point is refused later, and says why
            of_one = replace(definition, fixed=(*definition.fixed, f"hardware={hardware}"))
            kinds[isinstance(_composed(of_one).hardware, VirtualHardware)] = hardware
    if len(kinds) > 1:
        raise ConfigError(
            f"hardware={kinds[True]},{kinds[False]}: times of the first are modelled, of the other measured, and a "
            f"search by {definition.metric} would compare them. Search each by itself, or choose method=grid, which "
            "ranks each kind by itself"
        )


def _changed(definition: Definition, overrides: Sequence[str], config_dir: str | None) -> Definition:
    """Returns the definition with other values for some keys, fixed or swept."""
    parameters, fixed = dict(definition.parameters), list(definition.fixed)
    words = _unzipped(overrides)
    more, less = _read(overrides, config_dir)
    if less:
        fixed = after(fixed, less, usual_choices())[: -len(less)]
    own = {sweep_values(text)[0] for _, texts in definition.ways for text in texts}
    for text in words:
        key, _ = sweep_values(text)
        if key in own:
            raise ConfigError(f"{text}: each of this sweep's configurations has its own {key}")
        fixed = [other for other in fixed if sweep_values(other)[0] != key]
        parameters.pop(key, None)
    if not {**parameters, **more}:
        raise ConfigError(f"{' '.join(overrides)}: leaves nothing to sweep")
    swept = {**_without_leaders(parameters), **more}
    order = [key for key in definition.parameters if key in swept]  # conditions look back
    swept = {key: swept[key] for key in dict.fromkeys([*order, *swept])}
    conditions = tuple((key, so) for key, so in definition.when if key in swept)
    return replace(definition, parameters=swept, fixed=(*fixed, *less), when=conditions)


def from_overrides(overrides: Sequence[str], config_dir: str | None = None) -> Definition:
    """`sync=bsp,ssp optimizer.lr=interval(0.01,0.1)`: a grid, or where an interval has no end of values, bayes.

    Raises `ConfigError`.
    """
    parameters, fixed = _read(overrides, config_dir)
    if not parameters:
        raise ConfigError(
            "nothing is swept: give a key several values, such as sync=bsp,ssp or optimizer.lr=interval(0.01,0.1), or "
            "a file, such as sweeps/sync_modes.yaml"
        )
    finite = all(space.finite for space in parameters.values())
    return Definition("grid" if finite else "bayes", parameters, tuple(fixed))


def _read(overrides: Sequence[str], config_dir: str | None) -> tuple[dict[str, Space], list[str]]:
    """(What is swept, what is fixed.)"""
    parameters: dict[str, Space] = {}
    fixed: list[str] = []
    for text in overrides:
        if (words := _zipped(text)) is not None:
            group = paired(dict(_values_of(word, config_dir) for word in words))
            if twice := [key for key in group if key in parameters]:
                raise ConfigError(f"{text}: {twice[0]} is swept twice")
            parameters |= group
            continue
        key, found = sweep_values(text, Path(config_dir) if config_dir else None)
        if key.lstrip("+") == "name":
            raise ConfigError(f"{text}: a sweep names its runs by what differs between them. Its own name is --name")
        if found is None:
            fixed.append(text)
        elif key in parameters:
            raise ConfigError(f"{text}: {key} is swept twice")
        elif isinstance(found, ParameterInterval):
            parameters[key] = ranged(key, found.low, found.high, None, found.log)
        else:
            parameters[key] = Values(tuple(dict.fromkeys(found)))
    return parameters, fixed


def _without_leaders(parameters: dict[str, Space]) -> dict[str, Space]:
    """Pairs whose leader is gone become pairs of the others, or values."""
    gone: dict[str, dict[str, tuple[str, ...]]] = {}
    for key, space in parameters.items():
        if isinstance(space, Paired) and space.leader not in parameters:
            gone.setdefault(space.leader, {})[key] = space.texts
    found = dict(parameters)
    for group in gone.values():
        alone = {key: Values(tuple(dict.fromkeys(texts))) for key, texts in group.items()}
        found |= paired(group) if len(group) > 1 else alone
    return found


def _zipped(text: str) -> list[str] | None:
    """Returns the overrides within `zip(a=1,2; b=3,4)`; None of any other text. Raises `ConfigError`."""
    inner = text.strip()
    if not inner.startswith("zip("):
        return None
    if not inner.endswith(")") or "=" not in inner or re.search(r",\s*[\w./]+=", inner):
        raise ConfigError(f"{text}: is no zip; write for instance {_ZIP}")
    return [word.strip() for word in inner[4:-1].split(";")]


def _unzipped(overrides: Sequence[str]) -> list[str]:
    return [text for each in overrides for text in (_zipped(each) or [each])]


def _values_of(text: str, config_dir: str | None) -> tuple[str, list[str]]:
    """Raises `ConfigError`."""
    key, found = sweep_values(text, Path(config_dir) if config_dir else None)
    if not isinstance(found, list):
        raise ConfigError(f"{text}: must have several values, such as {_ZIP}")
    return key, found
