"""Changing what Hydra has composed, as it does itself (reading the files again takes ten times as long), and checking
each file before Hydra reads it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig


def apply_overrides(overrides: list[Override], config: DictConfig) -> None:
    """Applies overrides of values to `config`. Raises `ConfigCompositionException` and omegaconf's errors."""
    ConfigLoaderImpl._apply_overrides_to_config(overrides, config)


@contextmanager
def files_checked(check: Callable[[Path], None]) -> Iterator[None]:
    """Gives `check` the path of each YAML of a user's directory before Hydra reads it, and `check` may raise.

    A file's `defaults` may name any other file below the directory. Hydra must have been initialized: it loads the
    class that reads files under a name of its own.
    """
    reader = SourcesRegistry.instance().resolve("file")
    load = reader.load_config

    def checked(self: Any, config_path: str) -> Any:
        check(Path(self.path) / self._normalize_file_name(config_path))
        return load(self, config_path)

    with patch.object(reader, "load_config", checked):
        yield
