"""Hydra: defaults + overrides -> one validated `Experiment`. Only this file imports hydra."""

import difflib
import itertools
import pickle
import random
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, Sweep
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, UnsupportedInterpolationType

from ...compat.hydra import apply_overrides, files_checked, files_kept
from ...compat.omegaconf import no_resolvers
from ...conf.errors import ConfigError
from ...conf.grammar import as_text
from ...conf.groups import BY_NAME, CONF
from ...tracking.files import UnusableFileError, check_values
from ...tracking.redact import holds_secret
from .choice_files import (
    Files,
    check_file,
    check_files,
    check_sections,
    file_of,
    files_in,
    fills_its_own_section,
    section,
)
from .constructors import parameters_of
from .containers import check_deletion, check_form
from .described import described, is_composed, is_described
from .experiment import RENAMED, Choice, Experiment, from_config, no_such_key
from .group_overrides import FOLDERS, GROUPS, check_group, no_such_section
from .hints import elsewhere
from .kinds import check_kinds, numbers
from .presets import check_left_over, check_one
from .receivers import RECEIVERS, check_receivers

_INJECTED = ("params", "seed", "spec")  # parameters that the engine fills, beside those with a group's name
MOST_LISTED = 60  # keys or choices in a message: all of the configuration's top, and not all keys of all sections
MOST_VALUES = 100_000  # of one key in a sweep
LONGEST_NAME = 240  # bytes of a choice's, whose file has .yaml after it
LONGEST = 10_000  # characters of an override; reading one takes longer than in proportion
TOO_DEEP = "is nested too deeply"
OF_ALL_GROUPS = "sets keys of its own section. Begin the preset's file with the line `# @package _global_`."
_SECTION_OF_PRESET = re.compile(r"In 'experiment/(.+)': Could not override '.+@experiment\.")
_PARSER = OverridesParser.create()


@no_resolvers()
def compose(overrides: list[str], config_dir: Path | None = None) -> Experiment:
    """The experiment that `overrides` (Hydra's grammar) describe. Raises `ConfigError`, in well under a second.

    Resolvers are not there: what a configuration holds is written to the run's directory and sent to trackers, and the
    environment holds secrets.

    `config_dir`: a user's own directory; its groups' choices are there beside ours.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: there is no such directory")
    parsed = check_grammar(overrides)
    described = _described_in(parsed, config_dir)
    choosing = tuple(text for text, override in zip(overrides, parsed, strict=True) if _chooses(override, config_dir))
    try:
        kept = _with(described, _kept(choosing, config_dir))
        config = kept.config
        rest = [override for override in parsed if not _describes(override) and not _chooses(override, config_dir)]
        usual = numbers(config, (override.get_key_element() for override in rest))
        _apply(rest, config)
        _check_preset(parsed, config_dir)
        plain = _plain(config)
        check_kinds(usual, config)
        if config_dir is not None:
            check_sections(plain, kept.choices, config_dir)
            check_receivers(f"--config-dir {config_dir}", plain, *_typed(parsed), config_dir)
        _forget_workers_of_one_host(plain, parsed)
    except ConfigError:
        raise
    # ValueError: a group's choice is no name
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(_refusal(error, choosing, described, overrides, config_dir)) from None
    return from_config(plain, dict(kept.choices))


def _apply(overrides: list[Override], config: DictConfig) -> None:
    """Changes what is composed, as Hydra does after it has composed the choices. Raises `ConfigError`, and as Hydra."""
    for override in overrides:
        key, text = override.get_key_element().lstrip("+~"), _shown(str(override.input_line))
        if override.is_delete():
            check_deletion(text, key, config)
        else:
            check_form(text, key, override.value(), config)
        apply_overrides([override], config)


@dataclass(frozen=True)
class _Chosen:
    """A combination of choices, as their files have it, before any other override."""

    config: DictConfig
    choices: dict[str, str]  # by group


@dataclass(frozen=True)
class _Composed:
    """The result of composing with Hydra."""

    config: bytes  # pickled: to read it takes a quarter of the time of a deep copy
    choices: dict[str, str]


def _kept(choosing: tuple[str, ...], config_dir: Path | None) -> _Chosen:
    """Returns a new object, as Hydra composes them. Choices that fill a section of their own alone take the usual
    ones' place.
    """
    files = () if config_dir is None else files_in(config_dir, FOLDERS)
    if config_dir is not None:
        check_files(config_dir, files)
    parsed = [_read_override(text) for text in choosing]
    sections = [_section(override, config_dir) for override in parsed]
    own = {
        text: (override, found)
        for text, override, found in zip(choosing, parsed, sections, strict=True)
        if found is not None
    }
    rest = tuple(text for text in choosing if text not in own)
    if not all(_leaves_others(o, config_dir) for text, o in zip(choosing, parsed, strict=True) if text in rest):
        own, rest = {}, choosing
    usual = _of_choices(rest, None if config_dir is None else config_dir.absolute(), files)
    config, choices = pickle.loads(usual.config), dict(usual.choices)
    with open_dict(config):
        for override, found in own.values():
            group = override.get_key_element()
            config[group], choices[group] = found, str(override.value())
    return _Chosen(config, choices)


def _section(override: Override, config_dir: Path | None) -> DictConfig | None:
    """Returns the section that the override puts in the place of the default choice, if it fills a section of its own
    alone.
    """
    group = override.get_key_element()
    return section(group, override.value(), config_dir) if group in (*BY_NAME, "tracking") else None


def _leaves_others(override: Override, config_dir: Path | None) -> bool:
    """Returns whether it leaves the sections of `BY_NAME` alone. An experiment does not, and a user's own group may
    not.
    """
    group = override.get_key_element()
    return group in ("hardware", "hardware/network", "tracking") and fills_its_own_section(
        group, override.value(), config_dir
    )


@lru_cache(maxsize=256)  # reading 16 files takes ten times as long as all the rest
def _of_choices(choosing: tuple[str, ...], config_dir: Path | None, files: Files) -> _Composed:
    """Reads them by Hydra. `files`: the user's; those that have changed are read again."""
    search = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
    GlobalHydra.instance().clear()
    with initialize_config_module("paceline.conf", version_base="1.3"), files_checked(check_file), files_kept():
        config = hydra_compose("config", overrides=[*choosing, *search], return_hydra_config=True)
    chosen = config.hydra.runtime.choices.items()
    choices = {str(group): str(choice) if choice is not None else _described(config, group) for group, choice in chosen}
    with open_dict(config):
        del config["hydra"]
    return _Composed(pickle.dumps(config, pickle.HIGHEST_PROTOCOL), choices)


def _described_in(overrides: list[Override], config_dir: Path | None) -> dict[str, Choice]:
    """The choices that overrides describe, by group, unless another choice comes later. Raises `ConfigError`."""
    found: dict[str, Choice] = {}
    for override in overrides:
        group = override.get_key_element()
        found.pop(group, None)
        if choice := described(group, override.value(), config_dir):
            found[group] = choice
    return found


def _describes(override: Override) -> bool:
    return is_described(override.get_key_element(), override.value())


def _with(described: dict[str, Choice], chosen: _Chosen) -> _Chosen:
    with open_dict(chosen.config):
        for group, choice in described.items():
            chosen.config[group] = {"_target_": choice.target, **choice.knobs}
    return _Chosen(chosen.config, chosen.choices | {group: choice.name for group, choice in described.items()})


def _described(config: DictConfig, group: str) -> str:
    """The name of a class that an experiment of the user's describes itself, with `override /group: null`."""
    target = OmegaConf.select(config, f"{group}._target_")
    return target.rpartition(".")[2] if isinstance(target, str) else "None"


def _chooses(override: Override, config_dir: Path | None) -> bool:
    """Returns whether it chooses from a group. Hydra composes such overrides; all others change the composed result."""
    group = override.key_or_group or ""
    if _describes(override):
        return False
    return group in GROUPS or (config_dir is not None and "." not in group and (config_dir / group).is_dir())


def _check_preset(parsed: list[Override], config_dir: Path | None) -> None:
    chosen = {str(o.key_or_group): o.value() for o in parsed if _chooses(o, config_dir) and not o.is_delete()}
    given = {override.get_key_element().lstrip("+~") for override in parsed}
    check_left_over(chosen.get("experiment"), chosen, given, config_dir)


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    try:
        check_values(plain)  # or the run's config.yaml could not be read again
    except UnusableFileError as error:
        raise ConfigError(f"the configuration {error}") from None
    unknown = [str(key) for key in plain if str(key) not in Experiment.model_fields]
    if unknown and unknown[0] in RENAMED:
        raise ConfigError(f"{unknown[0]}: {no_such_key(unknown[0])}")
    if unknown == ["experiment"]:
        raise ConfigError(f"experiment: {OF_ALL_GROUPS}")
    if unknown:
        hint = elsewhere(unknown[0]) or _nearest(unknown[0], list(Experiment.model_fields))
        raise ConfigError(f"{unknown[0]}: there is no such key; {hint}")
    return {str(key): value for key, value in plain.items()}


def _forget_workers_of_one_host(plain: dict[str, Any], overrides: list[Override]) -> None:
    """`hardware=a100_8 hardware.hosts=4`: the choice's own `workers` are those of one host, and follow from `hosts`."""
    given = {override.get_key_element().lstrip("+~") for override in overrides}
    if "hardware.hosts" in given and "hardware.workers" not in given and plain["hardware"].get("hosts") is not None:
        plain["hardware"]["workers"] = None


def _refusal(
    error: Exception,
    choosing: tuple[str, ...],
    described: dict[str, Choice],
    overrides: list[str],
    config_dir: Path | None,
) -> str:
    """Returns the message for a composition that failed. `choosing`, `described`: its choices."""
    typed = _shown(" ".join(overrides))
    if (call := _resolver_call(error)) is not None:
        key = call.full_key if call.full_key not in (None, "_dummy_") else typed  # hydra's name in a list of defaults
        name = _first_line(call).rpartition(" ")[2]
        return (
            f"{key}: calls the resolver {_shown(name)}. A configuration has none, as the environment holds secrets; "
            "write the value, or read it in a class of your own"
        )
    if isinstance(error, MissingConfigException):
        return _no_such_choice(error, config_dir)
    if isinstance(error, ConfigCompositionException):
        return _no_such_key(error, choosing, described, overrides, config_dir)
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: has no default. Choose a value: {error.full_key}=VALUE"
    if isinstance(error, yaml.YAMLError):
        return f"a YAML of the configuration is broken: {' '.join(str(error).split())}"
    return f"{typed}: {TOO_DEEP if isinstance(error, RecursionError) else _first_line(error)}"


def _resolver_call(error: BaseException | None) -> UnsupportedInterpolationType | None:
    """The call of a resolver that an error of Hydra's comes from."""
    while error is not None and not isinstance(error, UnsupportedInterpolationType):
        error = error.__cause__ or error.__context__
    return error


def check_grammar(overrides: list[str]) -> list[Override]:
    """Returns the overrides, parsed. Raises `ConfigError` for one that cannot be of a single run."""
    parsed = [_parsed(text) for text in overrides]
    for text, override in zip(overrides, parsed, strict=True):
        if override.is_sweep_override():
            raise ConfigError(
                f"{text}: is a sweep over several values, and a run takes one of each key. {_one_value(text, override)}"
            )
        if not override.key_or_group:
            raise ConfigError(f"{text}: has no key; write key=value, for instance sync=asp")
        if override.key_or_group.split(".")[0].split("/")[0] == "hydra":
            raise ConfigError(f"{text}: hydra's own settings are not part of an experiment")
        is_choice = override.key_or_group in GROUPS and not override.is_delete() and not _describes(override)
        chosen = override.value() if is_choice else ""
        if not all(isinstance(name, str) for name in (chosen if isinstance(chosen, list) else [chosen])):
            raise ConfigError(f"{text}: takes choices by their names; see: paceline list {override.key_or_group}")
        for name in chosen if isinstance(chosen, list) else [chosen]:
            if len(str(name).encode()) > LONGEST_NAME:
                raise ConfigError(
                    f"{_shown(text)}: there is no such choice; see: paceline list {override.key_or_group}"
                )
        if override.key_or_group == "experiment":
            check_one(chosen)
        if override.key_or_group in RENAMED:
            raise ConfigError(f"{text}: {no_such_key(override.key_or_group)}")
        check_group(text, str(override.key_or_group), override.package, _how(override))
    return parsed


def _how(override: Override) -> Literal["set", "add", "force add", "delete"]:
    if override.is_force_add():
        return "force add"
    return "delete" if override.is_delete() else "add" if override.is_add() else "set"


@lru_cache(maxsize=1024)  # a parser of its own for each text takes twice as long, and each text is asked for often
def _read_override(text: str) -> Override:
    return _PARSER.parse_override(text)


def _parsed(text: str) -> Override:
    """Raises `ConfigError`."""
    if len(text) > LONGEST:
        raise ConfigError(f"{_shown(text)}: is an override of {len(text):,} characters; the most is {LONGEST:,}")
    try:
        return _read_override(text)
    except RecursionError:
        raise ConfigError(f"{_shown(text)}: {TOO_DEEP}") from None
    except ValueError as error:  # Python's own limit of a whole number's digits
        raise ConfigError(f"{_shown(text)}: is not an override ({_first_line(error)})") from None
    except HydraException as error:
        reason = _first_line(error).partition(" expecting ")[0]
        raise ConfigError(f"{text}: is not an override ({reason}); {_hint(text)}") from None


def _hint(text: str) -> str:
    """Returns the words that show how to write a broken override."""
    if quoted := _as_text(text):
        return f"quote the value: {quoted}"
    if quoted := _as_text(text, whole=True):
        return f"write a list as [1,2], a mapping as {{key:1}}, and a text in quotes: {quoted}"
    return "write key=value, for instance sync=asp"


def _one_value(text: str, override: Override) -> str:
    """Returns the list to write in place of a sweep."""
    value = override.value()
    if override.key_or_group in GROUPS or not isinstance(value, ChoiceSweep) or not value.simple_form:
        return "See: paceline sweep"
    key, _, values = text.partition("=")
    listed, quoted = shlex.quote(f"{key}=[{values}]"), _as_text(text)
    return f"Write {listed} for a list{f', {quoted} for a text' if quoted else ''}, or see: paceline sweep"


_FOREIGN = re.compile(r"""[^\s,:\[\]{}"']*[^\x00-\x7f][^\s,:\[\]{}"']*""")  # words with letters that are not ASCII


def _as_text(text: str, whole: bool = False) -> str | None:
    """An override whose value is in quotes of Hydra's, as a shell takes it; None where quotes do not help.

    Args:
        whole: Quote a list or a mapping as one text, not the words in it.
    """
    key, _, value = text.partition("=")
    if not value or value[0] in "'\"" or "${" in value:
        return None
    goes_on = value[-1] not in "]}" and all(value.count(one) == value.count(other) for one, other in ("[]", "{}"))
    is_text = whole or value[0] not in "[{" or goes_on  # as in {x}.csv
    quoted = f"{key}={as_text(value) if is_text else _FOREIGN.sub(lambda word: as_text(word[0]), value)}"
    try:
        read = _read_override(quoted)
    except (HydraException, ValueError):
        return None
    return shlex.quote(quoted) if (read.value() == value if is_text else quoted != text) else None


def _typed(parsed: list[Override]) -> tuple[set[str], dict[str, object]]:
    """Returns the keys of overrides, and the choices among them that `check_receivers` wants."""
    keys = {override.get_key_element().lstrip("+~") for override in parsed}
    return keys, {key: each.value() for each in parsed if (key := each.get_key_element()) in RECEIVERS}


def receivers_typed(source: str, composed: Experiment, overrides: list[str], config_dir: Path | None) -> None:
    """Raises `ConfigError` where `source` set a receiver of results, or what runs, that is not among `overrides`."""
    sections = {"tracking": composed.tracking, "launcher": composed.choice("launcher").knobs}
    check_receivers(source, sections, *_typed([_parsed(text) for text in overrides]), config_dir)


def _no_such_choice(error: MissingConfigException, config_dir: Path | None) -> str:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or [])
    if not options and group in GROUPS:  # one of a list of choices
        options = _all_choices(group, config_dir)
    if not group or not options:
        return f"{error.missing_cfg_file}: there is no such group; {_nearest(str(error.missing_cfg_file), GROUPS)}"
    nearest = _nearest(choice, options)
    if "." in choice and group in BY_NAME:
        nearest = f"a class of yours is {shlex.quote(f'{group}={{_target_:{choice}}}')}; {nearest}"
    return f"{group}={choice}: there is no such choice; {nearest}"


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
    random.seed(text)  # hydra shuffles by it
    try:
        return _swept(text, config_dir)
    finally:
        random.setstate(before)


def tells_secret(text: str) -> bool:
    """Returns True if an override of one value has a secret in it. Raises `ConfigError`."""
    override = _parsed(text)
    return holds_secret(override.key_or_group, override.value())


def _swept(text: str, config_dir: Path | None) -> tuple[str, list[str] | ParameterInterval | None]:
    override = _parsed(text)
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
        names = [name for name in _all_choices(key, config_dir) if name in value.filter([name])]
    else:
        try:
            names = [str(item) for item in itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1)]
        except (ValueError, ArithmeticError) as error:
            raise ConfigError(f"{text}: its values cannot be counted out ({_first_line(error)})") from None
    if not 0 < len(names) <= MOST_VALUES:
        many = f"more than {MOST_VALUES:,} values; an interval may do" if names else "no value to choose from"
        raise ConfigError(f"{text}: has {many}")
    return key, names


def _all_choices(group: str, config_dir: Path | None) -> list[str]:
    GlobalHydra.instance().clear()
    with initialize_config_module("paceline.conf", version_base="1.3"):
        ours = GlobalHydra.instance().config_loader().get_group_options(group)
    theirs = [file.stem for file in (config_dir / group).glob("*.yaml")] if config_dir else []
    return sorted({*ours, *theirs})


def instead(overrides: list[str], choices: dict[str, str]) -> list[str]:
    """The overrides with other `choices` in these groups; what was set of the former ones goes."""
    parsed = [(text, _read_override(text).get_key_element()) for text in overrides]
    groups = {path: path.lstrip("+~").partition("@")[0].split(".")[0] for _, path in parsed}
    kept = [text for text, path in parsed if groups[path] not in choices]
    return [*kept, *(f"{group}={name}" for group, name in choices.items())]


def choices_in(overrides: list[str]) -> dict[str, str]:
    """The choices among them, by group. Raises `ConfigError`."""
    parsed = check_grammar(overrides)
    chosen = {override.get_key_element(): override.value() for override in parsed if not override.is_delete()}
    named = {group: name for group, name in chosen.items() if group in GROUPS and isinstance(name, str)}
    of_files = [override for override in parsed if not is_composed(override.get_key_element(), override.value())]
    return named | {group: choice.name for group, choice in _described_in(of_files, None).items()}


def keys_in(overrides: list[str]) -> set[str]:
    """The keys and groups that they are about. Raises `ConfigError`."""
    return {_parsed(text).get_key_element().lstrip("+~") for text in overrides}


def after(told: list[str], given: list[str], usual: dict[str, str]) -> list[str]:
    """`given` after `told`: where it makes another choice, what `told` says of the former one goes, but for the number
    of workers. `usual`: the choices where nothing is said. Raises `ConfigError`.
    """
    before = usual | choices_in(told)
    others = {group for group, name in choices_in(given).items() if before.get(group) != name}
    paths = [_parsed(text).get_key_element().lstrip("+~") for text in told]
    kept = [
        text
        for text, path in zip(told, paths, strict=True)
        if path == "hardware.workers" or not any(_is_of(path, group) for group in others)
    ]
    return [*kept, *given]


def _is_of(path: str, group: str) -> bool:
    section = group.partition("@")[2] or group.replace("/", ".")
    return path == group or path.startswith((f"{section}.", f"{group}/"))


def _no_such_key(
    error: ConfigCompositionException,
    choosing: tuple[str, ...],
    described: dict[str, Choice],
    overrides: list[str],
    config_dir: Path | None,
) -> str:
    """`choosing`, `described`: what the key was looked for in is composed of."""
    message = str(error)
    if (found := _SECTION_OF_PRESET.search(message)) is not None:
        return f"experiment={found[1]}: {OF_ALL_GROUPS}"
    key = message.partition("'")[2].partition("'")[0].removesuffix(".")
    full = str(getattr(error.__cause__, "full_key", ""))
    key = full if full.startswith(f"{key}.") else key  # of a mapping, its key that is not there
    if (said := no_such_section(key)) is not None:  # `sync@optimizer.x`, also deleted
        return said
    if "Could not override 'hardware/network" in message:
        return "hardware/network: only hardware=virtual has a modelled network; add hardware=virtual"
    if "Could not override" not in message:
        return f"{_first_line(error.__cause__ or message)}"
    try:
        chosen = _with(described, _kept(choosing, config_dir))
    except HydraException as wrong:  # the choices themselves
        return _first_line(wrong)
    config, (parent, _, last) = chosen.config, key.rpartition(".")
    section = OmegaConf.select(config, parent) if parent else config
    names = [str(name) for name in section if name != "_target_"] if isinstance(section, DictConfig) else []
    values = {name: value for name, _, value in (text.lstrip("+").partition("=") for text in overrides)}
    in_section = _keys(section, f"{parent}.") if parent and names else []
    if within := [path for path in in_section if path.endswith(f".{last}")]:
        return f"{key}: there is no such key; did you mean {' or '.join(within)}?"
    near = difflib.get_close_matches(key, _keys(config), n=2, cutoff=0.85) if "." in parent and section is None else []
    if near:
        return f"{key}: there is no such key; did you mean {' or '.join(near)}?"
    if lacks := _lacks(section, parent, last, chosen.choices, config_dir):
        return f"{key}: there is no such key; {lacks}"
    is_misspelt = difflib.get_close_matches(last, names, cutoff=0.8 if parent not in BY_NAME else 0.6)
    if not is_misspelt and (there := elsewhere(key, values.get(key, ""), config_dir, chosen.choices.get(parent, ""))):
        own = f" ({parent}={chosen.choices[parent]} has {', '.join(names)})" if parent in BY_NAME and names else ""
        return f"{key}: there is no such key; {there}{own if there.startswith('it is ') else ''}"
    if parent and not isinstance(section, DictConfig):
        return f"{key}: there is no such key; {_nearest(key, _keys(config))}"
    full = [f"{parent}.{name}" if parent else name for name in names]
    return f"{key}: there is no such key; {_nearest(key, full) if full else f'{parent} has none'}"


def _lacks(section: Any, group: str, knob: str, choices: dict[str, str], config_dir: Path | None) -> str:
    """Returns the words for a knob that the class has and the choice's file lacks; "" for any other."""
    file = file_of(group, choices.get(group, ""), config_dir) if group in (*BY_NAME, "tracking") else None
    if file is None or knob in (*BY_NAME, *_INJECTED) or not isinstance(section, DictConfig):
        return ""
    if knob not in parameters_of(str(section.get("_target_"))):
        return ""
    where = f"conf/{group}/{file.name}" if file.is_relative_to(CONF) else file
    return f"{where} has no {knob}; its class has. Add it there"


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name in config:
        if name == "_target_":
            continue
        path = f"{prefix}{name}"
        keys.append(path)
        if isinstance(config.get(name), DictConfig):
            keys += _keys(config[name], f"{path}.")
    return keys


def _nearest(name: str, valid: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    listed = f"valid: {', '.join(sorted(valid))}" if len(valid) <= MOST_LISTED else "see: paceline plan"
    return f"did you mean {' or '.join(close)}? ({listed})" if close else listed


def _shown(text: str) -> str:
    """Returns as much of the typed text as identifies it."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def _first_line(error: object) -> str:
    return str(error).strip().splitlines()[0]
