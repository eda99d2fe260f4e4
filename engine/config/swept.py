"""The values that one override of a sweep goes over, in Hydra's grammar."""

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Glob, IntervalSweep, Sweep

from ...conf.errors import ConfigError
from .typed import first_line, parsed_override

MOST_VALUES = 100_000  # of one key in a sweep


@dataclass(frozen=True)
class ParameterInterval:
    """`interval(low, high)`; of whole numbers where both are; `log`: tag(log, ...)."""

    low: float
    high: float
    log: bool


def sweep_values(text: str, config_dir: Path | None = None) -> tuple[str, list[str] | ParameterInterval | None]:
    """The key of an override, and what it sweeps over: values as overrides write them; None for a single one.

    `shuffle` gives the same order each time. Raises `ConfigError`.
    """
    before = random.getstate()
    random.seed(text.encode(errors="surrogateescape"))  # hydra shuffles by it
    try:
        return _swept(text, config_dir)
    finally:
        random.setstate(before)


def _swept(text: str, config_dir: Path | None) -> tuple[str, list[str] | ParameterInterval | None]:
    override = parsed_override(text)
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, None
    value = override.value()
    if isinstance(value, IntervalSweep):
        if value.start is None or value.end is None:
            raise ConfigError(f"{text}: an interval has two bounds")
        unknown = value.tags - {"log"}
        if unknown:
            raise ConfigError(f"{text}: tag {unknown.pop()}: there is only log")
        return key, ParameterInterval(value.start, value.end, "log" in value.tags)
    if isinstance(value, Sweep) and value.tags:
        raise ConfigError(f"{text}: tags are for intervals, as in tag(log,interval(0.001,0.1))")
    if isinstance(value, Glob):
        names = [name for name in all_choices(key, config_dir) if name in value.filter([name])]
    else:
        try:
            names = [str(item) for item in itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1)]
        except (ValueError, ArithmeticError) as error:
            raise ConfigError(f"{text}: its values cannot be counted out ({first_line(error)})") from None
    if not 0 < len(names) <= MOST_VALUES:
        many = f"more than {MOST_VALUES:,} values; an interval may do" if names else "no value to choose from"
        raise ConfigError(f"{text}: has {many}")
    return key, names


def all_choices(group: str, config_dir: Path | None) -> list[str]:
    GlobalHydra.instance().clear()
    with initialize_config_module("paceline.conf", version_base="1.3"):
        ours = GlobalHydra.instance().config_loader().get_group_options(group)
    theirs = [file.stem for file in (config_dir / group).glob("*.yaml")] if config_dir else []
    return sorted({*ours, *theirs})
