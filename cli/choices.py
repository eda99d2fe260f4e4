"""The choices of every group, read from the YAML files alone: no Hydra, no torch."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError
from ..conf.groups import CONF

_ENTRY = re.compile(r"^(?P<indent> *)(?P<key>\w+):[^#]*(?:# (?P<comment>.+))?$")


@dataclass(frozen=True)
class ListedChoice:
    group: str
    name: str
    path: Path

    @property
    def description(self) -> str:
        """The file's first comment, the `# @package` line aside; "" where there is none."""
        for line in _text(self.path).splitlines():
            comment = line.removeprefix("#").strip()
            if not line.startswith("#"):
                break
            if not comment.startswith("@package"):
                return comment
        return ""

    def target(self) -> str:
        return str(read_yaml(self.path).get("_target_", ""))

    def knobs(self) -> dict[str, Any]:
        """Keys and defaults, without what Hydra reads."""
        content = read_yaml(self.path)
        return {str(key): value for key, value in content.items() if key not in ("_target_", "defaults")}

    def comments(self) -> dict[str, str]:
        """Returns the comments of the file on its keys; "" where there is none."""
        return _comments(_text(self.path))


def groups(config_dir: Path | None = None) -> dict[str, list[ListedChoice]]:
    """The choices of each group (`hardware`, `hardware/network`), ours and those in the user's `config_dir`.

    Raises ConfigError when there is no such directory.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: there is no such directory")
    found: dict[str, dict[str, ListedChoice]] = {}
    for directory in [CONF, config_dir] if config_dir else [CONF]:
        for path in sorted(directory.rglob("*.yaml")):
            group = path.parent.relative_to(directory).as_posix()
            if group != ".":
                found.setdefault(group, {}).setdefault(path.stem, ListedChoice(group, path.stem, path))
    return {group: sorted(found[group].values(), key=lambda choice: choice.name) for group in sorted(found)}


def group_of(name: str, config_dir: Path | None = None) -> list[ListedChoice]:
    """The choices of one group. Raises ConfigError, naming the nearest groups."""
    known = groups(config_dir)
    if name not in known:
        from ..tracking.text import did_you_mean

        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise ConfigError(f"{name}: there is no such group; {hint}")
    return known[name]


def primary() -> dict[str, Any]:
    """The keys outside any group, with their defaults."""
    return {str(key): value for key, value in read_yaml(CONF / "config.yaml").items() if key != "defaults"}


def primary_comments() -> dict[str, str]:
    """Returns the comments of conf/config.yaml on keys outside any group; "" where there is none."""
    return _comments(_text(CONF / "config.yaml").partition("\n\n")[2])  # the defaults come first


def _comments(text: str) -> dict[str, str]:
    """Returns the comments by dotted key."""
    found: dict[str, str] = {}
    above = ""
    for line in text.splitlines():
        if entry := _ENTRY.match(line):
            if not entry["indent"]:
                above = entry["key"]
            key = f"{above}.{entry['key']}" if entry["indent"] else above
            found[key] = entry["comment"] or ""
    return found


def defaults() -> dict[str, str]:
    """Returns the default choice of each group."""
    listed = read_yaml(CONF / "config.yaml")["defaults"]
    return {group: choice for entry in listed if isinstance(entry, dict) for group, choice in entry.items() if choice}


def read_yaml(path: Path) -> dict[str, Any]:
    """A file's mapping; {} for a file of comments."""
    from ..tracking.files import UnusableFileError, parse_yaml

    try:
        content = parse_yaml(_text(path))
    except UnusableFileError as error:
        raise ConfigError(f"{path} {error}") from None
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    """Raises ConfigError."""
    from ..tracking.files import UnusableFileError, read_text

    try:
        return read_text(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise ConfigError(f"{path} {error}") from None
