"""Finds where a key belongs that was typed in the wrong place. It reads the YAML files, for errors alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...conf.groups import BY_NAME, CONF
from ...conf.words import KEYS
from ...tracking.files import UnusableFileError, read_yaml

_UNBIASED = (
    "its messages are unbiased, and what one leaves out may be longer than what there was, so that what is carried "
    "over would grow without end"
)
_WITHOUT = {  # keys that some choices leave out on purpose -> why, by choice
    "compress.error_feedback": {
        "atomo": _UNBIASED,
        "demo": "what is not sent always stays in each worker's momentum (compress.beta)",
        "dgc": "what is not sent always stays in each worker's velocity (compress.momentum)",
        "masked": "of what it sends it leaves out nothing",
        "none": "it leaves out nothing",
        "qsgd": _UNBIASED,
        "signsgd": "a vote has no size that a remainder could be measured by; compress=ef_signsgd is signs with it",
        "terngrad": _UNBIASED,
    }
}
_OTHERS = ("hardware", "tracking", "callbacks", "experiment")  # folders of choices that are in no table
_MOST = 3  # choices that are named of those that have a key


def elsewhere(key: str, value: str = "", config_dir: Path | None = None, choice: str = "") -> str:
    """`optimizer.stage` -> `strategy=zero has strategy.stage`; "" where nothing has a key of this last name.

    `value`: what it was to be set to. `config_dir`: a user's own choices, too. `choice`: of the key's group.
    """
    if why := _WITHOUT.get(key, {}).get(choice):
        return f"{key.partition('.')[0]}={choice} has none: {why}; {elsewhere(key, value, config_dir)}"
    leaf = key.rpartition(".")[2].replace("-", "_")
    given = f"={value}" if value else "=..."
    if leaf == "name" and key.removesuffix(".name") in BY_NAME:
        return f"it is {key.removesuffix('.name')}{given}"
    if leaf in _groups():
        group = _groups()[leaf]
        if key == group and group not in (*BY_NAME, *_OTHERS):
            return f"conf/{group} has choices, but conf/groups.py has no such group. Add it to GROUPS there."
        choices = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
        if value and value not in choices and len(choices) <= _MOST:
            given = f"={', '.join(choices[:-1])} or {choices[-1]}"
        return f"{group}{given} chooses it"
    primary = _read(CONF / "config.yaml")
    usual = {
        f"{group}={choice}"
        for entry in primary["defaults"]
        if isinstance(entry, dict)
        for group, choice in entry.items()
    }
    holders = _holders(leaf, config_dir)
    if key in holders:  # another choice of the same group
        return _who_has(holders[key], key)
    found = [path for path in _flat(primary) if path.rpartition(".")[2] == leaf]
    found += [path for path, choices in holders.items() if usual & {*choices}]
    if found:
        return f"it is {' or '.join(path + given for path in found)}"
    if not holders and leaf in KEYS:
        own = KEYS[leaf]
        return f"{own} chooses it" if own.rpartition(".")[2].count("=") else f"it is {own}{given}"
    return " and ".join(_who_has(choices, path) for path, choices in holders.items())


def _who_has(choices: list[str], path: str) -> str:
    return f"{_listed(choices)} {'has' if len(choices) == 1 else 'have'} {path}"


def _groups() -> dict[str, str]:
    """The last name of each group, and the group: `network` is `hardware/network`."""
    folders = sorted(path.relative_to(CONF) for path in CONF.rglob("*") if any(path.glob("*.yaml")))
    return {folder.name: folder.as_posix() for folder in folders}


def _holders(leaf: str, config_dir: Path | None) -> dict[str, list[str]]:
    """Full names of the key, each with the choices that have it, or with its group alone where all do."""
    holders: dict[str, list[str]] = {}
    for directory in [CONF, config_dir] if config_dir else [CONF]:
        for group in sorted({file.parent for file in directory.glob("*/*.yaml")} - {directory / "experiment"}):
            contents = {file.stem: _read(file) for file in sorted(group.glob("*.yaml"))}
            for choice, content in contents.items():
                for path in _flat(content):
                    if path.rpartition(".")[2] == leaf:
                        # of callbacks there may be several, each with keys of its own
                        prefix = f"callbacks.{choice}" if group.name == "callbacks" else group.name
                        holders.setdefault(f"{prefix}.{path}", []).append(f"{group.name}={choice}")
    return holders


def _listed(choices: list[str]) -> str:
    more = len(choices) - _MOST
    return ", ".join(choices[:_MOST]) + (f" (and {more} more)" if more > 0 else "")


def _read(file: Path) -> dict[str, Any]:
    """Returns {} for a file of somebody's that cannot be read: who chooses it is told so."""
    try:
        content = read_yaml(file)
    except (OSError, UnusableFileError):
        return {}
    return content if isinstance(content, dict) else {}


def _flat(content: dict[str, Any]) -> Iterator[str]:
    """Paths of its keys, without what Hydra reads."""
    for key, value in content.items():
        if key in ("_target_", "defaults"):
            continue
        yield str(key)
        if isinstance(value, dict):
            yield from (f"{key}.{path}" for path in _flat(value))
