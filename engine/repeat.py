"""The one line that repeats a run: its configuration as it would be typed into a shell."""

import shlex
from typing import Any

from ..conf.groups import BY_NAME
from .compose import hidden_keys
from .experiment import CONF, completed
from .overrides import overrides_of


def command_of(config: dict[str, Any]) -> tuple[str, list[str]]:
    """The line that trains what config.yaml holds, the run's name aside, and what it cannot hold, in words.

    Raises `ConfigError`, KeyError, TypeError or AttributeError where it is no configuration of this version.
    """
    overrides = overrides_of(config)
    config, hidden = completed(config), hidden_keys(config)
    kept = [text for text in overrides if text.lstrip("+").partition("=")[0] not in hidden]
    own = [group for group in BY_NAME if not (CONF / group / f"{config[group]['name']}.yaml").is_file()]
    packages = {str(config[group]["target"]).partition(".")[0]: None for group in BY_NAME}
    allow = [
        word for package in packages if package not in ("paceline", "torch") for word in ("--allow-module", package)
    ]
    notes = [f"{key} looked like a secret and was not stored; add {key}=..." for key in hidden]
    if own:
        chosen = ", ".join(f"{group}={config[group]['name']}" for group in own)
        notes.append(f"{chosen}: not of ours; add --config-dir DIR, which is not stored")
    return quoted(["paceline", "train", *kept, *allow]), notes


def quoted(words: list[str]) -> str:
    """As a shell reads them. What a terminal would act upon is written out, as bash and zsh take it: $'\\033'."""
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
