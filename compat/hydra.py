"""Changing what Hydra has composed, as it does itself (reading the files again takes ten times as long), and checking
each file before Hydra reads it."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf


def apply_overrides(overrides: list[Override], config: DictConfig) -> None:
    """Applies overrides of values to `config`. Raises `ConfigCompositionException` and omegaconf's errors."""
    ConfigLoaderImpl._apply_overrides_to_config(overrides, config)


@contextmanager
def files_checked(
    check: Callable[[Path | None, str], None], check_loaded: Callable[[str, list[int]], None]
) -> Iterator[None]:
    """Gives `check` each YAML before Hydra reads it, and `check` may raise: a user's directory, or None for ours, and
    the file's path below it.

    Hydra reads a file once, and copies its content each time that a list of defaults names it. `check_loaded` gets the
    first user's file of these lists, and how many values each copy below such a file has so far.

    A file's `defaults` may name any other file, also by `..`. Hydra must have been initialized: it loads the classes
    that read files under names of its own.
    """
    mine, ours = (SourcesRegistry.instance().resolve(scheme) for scheme in ("file", "pkg"))
    load, load_ours, expand = mine.load_config, ours.load_config, defaults_list._create_defaults_tree_impl
    sizes: dict[str, int] = {}  # by the name of a user's file
    copies: list[int] = []

    def checked(self: Any, config_path: str) -> Any:
        check(Path(self.path), self._normalize_file_name(config_path))
        found = load(self, config_path)
        sizes[config_path] = _values(OmegaConf.to_container(found.config))
        return found

    def checked_ours(self: Any, config_path: str) -> Any:
        check(None, self._normalize_file_name(config_path))
        return load_ours(self, config_path)

    def counted(repo: Any, root: Any, *args: Any, **kwargs: Any) -> Any:
        tree = expand(repo, root, *args, **kwargs)
        names = [node.get_config_path() for node in _upwards(root)]
        if users := [name for name in names if name in sizes]:
            copies.append(sizes.get(names[0], 1))  # a file of ours is small
            check_loaded(users[-1], copies)
        return tree

    with (
        patch.object(mine, "load_config", checked),
        patch.object(ours, "load_config", checked_ours),
        patch.object(defaults_list, "_create_defaults_tree_impl", counted),
    ):
        yield


def _values(content: Any) -> int:
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return 1 + sum(map(_values, inside))


def _upwards(tree: Any) -> Iterator[Any]:
    """Yields the node of a tree of defaults, and those above it."""
    while tree is not None:
        yield tree.node
        tree = tree.parent


_read: dict[tuple[str, str], bytes] = {}  # a package and a file in it -> the pickled result of reading it


@contextmanager
def files_kept() -> Iterator[None]:
    """Has Hydra read each file of a package once in this process, and halves the time of a composition.

    Hydra also makes a table for interpolations in each list of defaults, which takes a third of that time, whether or
    not the list has any. It is made for lists that have some. Hydra must have been initialized.
    """
    reader = SourcesRegistry.instance().resolve("pkg")
    load, table = reader.load_config, defaults_list._create_interpolation_map

    def kept(self: Any, config_path: str) -> Any:
        key = self.path, config_path
        if key not in _read:
            _read[key] = pickle.dumps(load(self, config_path), pickle.HIGHEST_PROTOCOL)
        return pickle.loads(_read[key])  # Hydra changes what it has read

    def table_where_needed(overrides: Any, defaults: Any, self_added: bool) -> Any:
        return table(overrides, defaults, self_added) if any("${" in repr(each) for each in defaults) else None

    with (
        patch.object(reader, "load_config", kept),
        patch.object(defaults_list, "_create_interpolation_map", table_where_needed),
    ):
        yield
