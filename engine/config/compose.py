"""Hydra: defaults + overrides -> one validated `Experiment`."""

import difflib
import pickle
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    GrammarParseError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from ...compat.hydra import apply_overrides, files_checked, files_kept
from ...compat.omegaconf import no_resolvers
from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME, CONF
from ...tracking.files import UnusableFileError, check_values
from ...tracking.redact import holds_secret
from ...tracking.text import did_you_mean
from .choice_files import (
    Files,
    check_file,
    check_files,
    check_loaded,
    check_sections,
    file_of,
    files_in,
    fills_its_own_section,
    section,
)
from .constructors import parameters_of
from .containers import check_deletion, check_form
from .experiment import RENAMED, Choice, Experiment, from_config, no_such_key
from .group_overrides import FOLDERS, GROUPS, no_such_section
from .hints import elsewhere
from .kinds import check_kinds, numbers
from .presets import check_left_over
from .receivers import RECEIVERS, check_receivers
from .swept import all_choices
from .typed import (
    TOO_DEEP,
    check_grammar,
    described_in,
    describes,
    first_line,
    parsed_override,
    read_override,
    shown,
)

_Error = TypeVar("_Error", bound=BaseException)
_INJECTED = ("params", "seed", "spec")  # parameters that the engine fills, beside those with a group's name
MOST_LISTED = 60  # keys or choices in a message: all of the configuration's top, and not all keys of all sections
OF_ALL_GROUPS = "sets keys of its own section. Begin the preset's file with the line `# @package _global_`."
_SECTION_OF_PRESET = re.compile(r"In 'experiment/(.+)': Could not override '.+@experiment\.")


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
    described = described_in(parsed, config_dir)
    choosing = tuple(text for text, override in zip(overrides, parsed, strict=True) if _chooses(override, config_dir))
    try:
        kept = _with(described, _kept(choosing, config_dir))
        config = kept.config
        rest = [override for override in parsed if not describes(override) and not _chooses(override, config_dir)]
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
        key, text = override.get_key_element().lstrip("+~"), shown(str(override.input_line))
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
    parsed = [read_override(text) for text in choosing]
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
    with (
        initialize_config_module("paceline.conf", version_base="1.3"),
        files_checked(check_file, partial(check_loaded, config_dir)),
        files_kept(),
    ):
        config = hydra_compose("config", overrides=[*choosing, *search], return_hydra_config=True)
    chosen = config.hydra.runtime.choices.items()
    choices = {str(group): str(choice) if choice is not None else _described(config, group) for group, choice in chosen}
    with open_dict(config):
        del config["hydra"]
    return _Composed(pickle.dumps(config, pickle.HIGHEST_PROTOCOL), choices)


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
    if describes(override):
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
    typed = shown(" ".join(overrides))
    if (broken := _first_of(GrammarParseError, error)) is not None:
        key, value = broken.full_key, shown(str(broken.value))
        is_secret = any(holds_secret(part, value) for part in re.split(r"[.\[\]]+", str(key)))
        said = key if is_secret else f"{key}={value!r}"
        merged = str(error).partition("Error merging override ")[2]  # Hydra's words; else it is of a choice's file
        told = "" if merged.startswith(f"{key}=") else merged or " ".join(choosing)
        source = f"{shown(told)}: " if told else ""
        return f"{source}{said}: is a broken interpolation. Write ${{KEY}} with the name of a key, or \\${{ as text"
    if (call := _first_of(UnsupportedInterpolationType, error)) is not None:
        key = call.full_key if call.full_key not in (None, "_dummy_") else typed  # hydra's name in a list of defaults
        name = first_line(call).rpartition(" ")[2]
        return (
            f"{key}: calls the resolver {shown(name)}. A configuration has none, as the environment holds secrets; "
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
    return f"{typed}: {TOO_DEEP if isinstance(error, RecursionError) else first_line(error)}"


def _first_of(kind: type[_Error], error: BaseException | None) -> _Error | None:
    """The error of this kind that an error of Hydra's comes from."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _typed(parsed: list[Override]) -> tuple[set[str], dict[str, object]]:
    """Returns the keys of overrides, and the choices among them that `check_receivers` wants."""
    keys = {override.get_key_element().lstrip("+~") for override in parsed}
    return keys, {key: each.value() for each in parsed if (key := each.get_key_element()) in RECEIVERS}


def receivers_typed(source: str, composed: Experiment, overrides: list[str], config_dir: Path | None) -> None:
    """Raises `ConfigError` where `source` set a receiver of results, or what runs, that is not among `overrides`."""
    sections = {"tracking": composed.tracking, "launcher": composed.choice("launcher").knobs}
    check_receivers(source, sections, *_typed([parsed_override(text) for text in overrides]), config_dir)


def _no_such_choice(error: MissingConfigException, config_dir: Path | None) -> str:
    path = error.missing_cfg_file or ""
    group = next((each for each in reversed(FOLDERS) if path.startswith(f"{each}/")), path.rpartition("/")[0])
    choice = path.removeprefix(f"{group}/")
    options = list(error.options or [])
    if not options and group in GROUPS:  # one of a list of choices
        options = all_choices(group, config_dir)
    if not group or not options:
        return f"{error.missing_cfg_file}: there is no such group; {_nearest(str(error.missing_cfg_file), GROUPS)}"
    nearest = _nearest(choice, options)
    if "." in choice and "/" not in choice and group in BY_NAME:
        nearest = f"a class of yours is {shlex.quote(f'{group}={{_target_:{choice}}}')}; {nearest}"
    reading = elsewhere(f"{group}.path", config_dir=config_dir) if "." in choice or "/" in choice else ""
    if reading.endswith(f" {group}.path"):  # as a file of the user's
        nearest = f"{reading}; {nearest}"
    return f"{group}={choice}: there is no such choice; {nearest}"


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
        return f"{shown(' '.join(overrides))}: {first_line(error.__cause__ or message)}"
    try:
        chosen = _with(described, _kept(choosing, config_dir))
    except HydraException as wrong:  # the choices themselves
        return first_line(wrong)
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
    if lacks := _lacks(section, key, values, chosen.choices, config_dir):
        return f"{key}: there is no such key; {lacks}"
    is_misspelt = difflib.get_close_matches(last, names, cutoff=0.8 if parent not in BY_NAME else 0.6)
    if not is_misspelt and (there := elsewhere(key, values.get(key, ""), config_dir, chosen.choices.get(parent, ""))):
        own = f" ({parent}={chosen.choices[parent]} has {', '.join(names)})" if parent in BY_NAME and names else ""
        return f"{key}: there is no such key; {there}{own if there.startswith('it is ') else ''}"
    if parent and not isinstance(section, DictConfig):
        return f"{key}: there is no such key; {_nearest(key, _keys(config))}"
    full = [f"{parent}.{name}" if parent else name for name in names]
    return f"{key}: there is no such key; {_nearest(key, full) if full else f'{parent} has none'}"


def _lacks(section: Any, key: str, values: dict[str, str], choices: dict[str, str], config_dir: Path | None) -> str:
    """Returns the words for a knob that the class may have and the section lacks; "" for any other."""
    group, _, knob = key.rpartition(".")
    if group not in (*BY_NAME, "tracking") or knob in (*BY_NAME, *_INJECTED) or not isinstance(section, DictConfig):
        return ""
    target = values.get(f"{group}._target_") or str(section.get("_target_"))
    file, parameters = file_of(group, choices.get(group, ""), config_dir), parameters_of(target)
    if knob not in parameters and (file or parameters or difflib.get_close_matches(knob, map(str, section))):
        return ""
    added = f"+{key}={values.get(key) or '...'} gives it to {target}"
    return added if file is None or file.is_relative_to(CONF) else f"{added}, as does a line in {file}"


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
    near = did_you_mean(name, valid)
    listed = f"valid: {', '.join(sorted(valid))}" if len(valid) <= MOST_LISTED else "see: paceline plan"
    return f"{near} ({listed})" if near else listed
