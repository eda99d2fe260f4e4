"""Refuses an override whose value has another form than its key: a mapping for a list, a list for a section."""

from collections.abc import Callable

from omegaconf import DictConfig, ListConfig, OmegaConf

from ...conf.errors import ConfigError
from ...conf.grammar import as_override


def check_deletion(text: str, key: str, config: DictConfig) -> None:
    """Raises `ConfigError` where nothing is under `key`, or an entry of a list, which has no keys to delete."""
    _check_path(text, key, config, lambda piece, within: False)
    if _at(config, key) is None:
        raise ConfigError(f"{text}: nothing is there to delete: {key} is null or no key. Leave it out.")


def check_form(text: str, key: str, value: object, config: DictConfig) -> None:
    """Raises `ConfigError` unless `value` can take the place of what `config` has under `key`.

    Hydra merges mappings and replaces everything else. Where a mapping meets a list, it names no key.

    Args:
        text: The override as it was typed.
    """
    _check_path(text, key, config, lambda piece, within: piece.isdecimal() and int(piece) < len(within))
    found = _at(config, key)
    if isinstance(found, ListConfig) and isinstance(value, dict):
        raise ConfigError(f"{text}: must be a list. Choose one, {_such_as(key, found)}.")
    if isinstance(found, DictConfig) and value is not None and not isinstance(value, dict):
        parent = _at(config, key.rpartition(".")[0])
        is_knob = isinstance(parent, DictConfig) and "_target_" in parent  # a class may take more than a mapping
        if isinstance(value, list) or not is_knob:
            keys = [f"{key}.{name}" for name in found if name != "_target_"]
            raise ConfigError(f"{text}: is a section. Set one of its keys: {', '.join(keys)}")


def _check_path(text: str, key: str, config: DictConfig, has: Callable[[str, ListConfig], bool]) -> None:
    pieces = key.split(".")
    for depth in range(1, len(pieces)):
        path = ".".join(pieces[:depth])
        within = _at(config, path)
        if isinstance(within, ListConfig) and not has(pieces[depth], within):
            raise ConfigError(
                f"{text}: {path} is a list of {len(within)}. Write all of its entries, {_such_as(path, within)}."
            )


def _at(config: DictConfig, path: str) -> object:
    """Returns what is there, without following interpolations; None where nothing is."""
    node: object = config
    for piece in path.split(".") if path else ():
        if isinstance(node, DictConfig) and piece in node and not OmegaConf.is_interpolation(node, piece):
            node = node.get(piece)
        elif isinstance(node, ListConfig) and piece.isdecimal() and int(piece) < len(node):
            node = node[int(piece)]
        else:
            return None
    return node


def _such_as(path: str, found: ListConfig) -> str:
    """Returns an override with a list of the same kind."""
    return f"such as {path}={as_override(OmegaConf.to_container(found)) if len(found) else '[a,b]'}"
