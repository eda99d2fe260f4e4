"""Single overrides as they are typed: Hydra's grammar, its refusals, and how to write what was meant."""

import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from ...conf.errors import ConfigError
from ...conf.grammar import as_text
from ...tracking.redact import holds_secret
from .described import described, is_composed, is_described
from .experiment import RENAMED, Choice, no_such_key
from .group_overrides import GROUPS, check_group
from .presets import check_one

LONGEST_NAME = 240  # bytes of a choice's, whose file has .yaml after it
LONGEST = 10_000  # characters of an override; reading one takes longer than in proportion
TOO_DEEP = "is nested too deeply"
_PARSER = OverridesParser.create()


def check_grammar(overrides: list[str]) -> list[Override]:
    """Returns the overrides, parsed. Raises `ConfigError` for one that cannot be of a single run."""
    parsed = [parsed_override(text) for text in overrides]
    for text, override in zip(overrides, parsed, strict=True):
        if override.is_sweep_override():
            raise ConfigError(
                f"{text}: is a sweep over several values, and a run takes one of each key. {_one_value(text, override)}"
            )
        if not override.key_or_group:
            raise ConfigError(f"{text}: has no key; write key=value, for instance sync=asp")
        if override.key_or_group.split(".")[0].split("/")[0] == "hydra":
            raise ConfigError(f"{text}: hydra's own settings are not part of an experiment")
        is_choice = override.key_or_group in GROUPS and not override.is_delete() and not describes(override)
        chosen = override.value() if is_choice else ""
        if not all(isinstance(name, str) for name in (chosen if isinstance(chosen, list) else [chosen])):
            raise ConfigError(f"{text}: takes choices by their names; see: paceline list {override.key_or_group}")
        for name in chosen if isinstance(chosen, list) else [chosen]:
            if len(str(name).encode()) > LONGEST_NAME:
                raise ConfigError(f"{shown(text)}: there is no such choice; see: paceline list {override.key_or_group}")
        if override.key_or_group == "experiment":
            check_one(chosen)
        if override.key_or_group in RENAMED:
            raise ConfigError(f"{text}: {no_such_key(override.key_or_group)}")
        check_group(text, str(override.key_or_group), override.package, _how(override))
    return parsed


def choices_in(overrides: list[str]) -> dict[str, str]:
    """The choices among them, by group. Raises `ConfigError`."""
    parsed = check_grammar(overrides)
    chosen = {override.get_key_element(): override.value() for override in parsed if not override.is_delete()}
    named = {group: name for group, name in chosen.items() if group in GROUPS and isinstance(name, str)}
    of_files = [override for override in parsed if not is_composed(override.get_key_element(), override.value())]
    return named | {group: choice.name for group, choice in described_in(of_files, None).items()}


def keys_in(overrides: list[str]) -> set[str]:
    """The keys and groups that they are about. Raises `ConfigError`."""
    return {parsed_override(text).get_key_element().lstrip("+~") for text in overrides}


def after(told: list[str], given: list[str], usual: dict[str, str]) -> list[str]:
    """`given` after `told`: where it makes another choice, what `told` says of the former one goes, but for the number
    of workers. `usual`: the choices where nothing is said. Raises `ConfigError`.
    """
    before = usual | choices_in(told)
    others = {group for group, name in choices_in(given).items() if before.get(group) != name}
    paths = [parsed_override(text).get_key_element().lstrip("+~") for text in told]
    kept = [
        text
        for text, path in zip(told, paths, strict=True)
        if path == "hardware.workers" or not any(_is_of(path, group) for group in others)
    ]
    return [*kept, *given]


def _is_of(path: str, group: str) -> bool:
    section = group.partition("@")[2] or group.replace("/", ".")
    return path == group or path.startswith((f"{section}.", f"{group}/"))


def instead(overrides: list[str], choices: dict[str, str]) -> list[str]:
    """The overrides with other `choices` in these groups; what was set of the former ones goes."""
    parsed = [(text, read_override(text).get_key_element()) for text in overrides]
    groups = {path: path.lstrip("+~").partition("@")[0].split(".")[0] for _, path in parsed}
    kept = [text for text, path in parsed if groups[path] not in choices]
    return [*kept, *(f"{group}={name}" for group, name in choices.items())]


def tells_secret(text: str) -> bool:
    """Returns True if an override of one value has a secret in it. Raises `ConfigError`."""
    override = parsed_override(text)
    return holds_secret(override.key_or_group, override.value())


def parsed_override(text: str) -> Override:
    """Returns one override, parsed; a sweep also. Raises `ConfigError`."""
    if len(text) > LONGEST:
        raise ConfigError(f"{shown(text)}: is an override of {len(text):,} characters; the most is {LONGEST:,}")
    try:
        return read_override(text)
    except RecursionError:
        raise ConfigError(f"{shown(text)}: {TOO_DEEP}") from None
    except ValueError as error:  # Python's own limit of a whole number's digits
        raise ConfigError(f"{shown(text)}: is not an override ({first_line(error)})") from None
    except HydraException as error:
        reason = first_line(error).partition(" expecting ")[0]
        raise ConfigError(f"{text}: is not an override ({reason}); {_hint(text)}") from None


@lru_cache(maxsize=1024)  # a parser of its own for each text takes twice as long, and each text is asked for often
def read_override(text: str) -> Override:
    """Returns one override. Raises Hydra's errors."""
    return _PARSER.parse_override(text)


def described_in(overrides: list[Override], config_dir: Path | None) -> dict[str, Choice]:
    """The choices that overrides describe, by group, unless another choice comes later. Raises `ConfigError`."""
    found: dict[str, Choice] = {}
    for override in overrides:
        group = override.get_key_element()
        found.pop(group, None)
        if choice := described(group, override.value(), config_dir):
            found[group] = choice
    return found


def describes(override: Override) -> bool:
    """Returns whether it describes a class in place of a choice."""
    return is_described(override.get_key_element(), override.value())


def _how(override: Override) -> Literal["set", "add", "force add", "delete"]:
    if override.is_force_add():
        return "force add"
    return "delete" if override.is_delete() else "add" if override.is_add() else "set"


_ANOTHER_KEY = re.compile(r"=.*\s[A-Za-z_][\w./@]*=")


def _hint(text: str) -> str:
    """Returns the words that show how to write a broken override."""
    key, _, value = text.partition("=")
    if value.startswith("(") and value.endswith(")"):
        listed = value.replace("(", "[").replace(")", "]")
        return f"write a list in brackets: {shlex.quote(f'{key}={listed}')}"
    if quoted := _as_text(text):
        several = "write each KEY=VALUE as a word of its own, or " if _ANOTHER_KEY.search(text) else ""
        return f"{several}quote the value: {quoted}"
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
    if _DECIMAL_COMMA.fullmatch(values):
        return f"Write {key}={values.replace(',', '.')} for a number, {listed} for a list, or see: paceline sweep"
    return f"Write {listed} for a list{f', {quoted} for a text' if quoted else ''}, or see: paceline sweep"


_DECIMAL_COMMA = re.compile(r"-?(0,\d+|\d+,0\d+)")  # as in 0,01 and 1,05
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
        read = read_override(quoted)
    except (HydraException, ValueError):
        return None
    return shlex.quote(quoted) if (read.value() == value if is_text else quoted != text) else None


def shown(text: str) -> str:
    """Returns as much of the typed text as identifies it."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def first_line(error: object) -> str:
    """Returns the first line of an error's text: those of Hydra go on with the grammar."""
    return str(error).strip().splitlines()[0]
