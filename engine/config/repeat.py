"""The one line that repeats a run: its configuration as it would be typed into a shell."""

import shlex
from collections.abc import Iterable
from typing import Any

from ...conf.groups import BY_NAME
from .experiment import completed
from .overrides import overrides_of
from .resumed import hidden_keys


def command_of(config: dict[str, Any]) -> tuple[str, list[str]]:
    """The line that trains what config.yaml holds, the run's name aside, and what it cannot hold, in words.

    Raises `ConfigError`, KeyError, TypeError or AttributeError where it is no configuration of this version.
    """
    overrides, hidden, own = overrides_of(config), hidden_keys(config), packages_of(config)
    typed = {text.lstrip("+").partition("=")[0]: text for text in overrides}
    kept = [text for key, text in typed.items() if key not in hidden]
    to_add = {key: typed.get(key, key).partition("=")[0] for key in hidden}
    notes = [f"{key} looked like a secret and was not stored; add {add}=..." for key, add in to_add.items()]
    if own:
        notes.append(f"{', '.join(own)}: of your own; the line runs where Python can import that, as in its folder")
    return quoted(["paceline", "train", *kept, *allowing(own)]), notes


def packages_of(config: dict[str, Any]) -> list[str]:
    """The packages of classes that are neither ours nor torch's: what a run with them has to allow."""
    config = completed(config)
    choices = [*(config[group] for group in BY_NAME), *config.get("callbacks", {}).values()]
    packages = dict.fromkeys(str(choice["target"]).partition(".")[0] for choice in choices)
    return [package for package in packages if package not in ("paceline", "torch")]


def allowing(packages: Iterable[str]) -> list[str]:
    """The words of a command that allow them."""
    return [word for package in packages for word in ("--allow-module", package)]


def quoted(words: list[str]) -> str:
    """Quotes the words for a shell. Characters that a terminal acts upon are written out, as bash and zsh take it:
    $'\\033'.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))
