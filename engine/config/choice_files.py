"""A choice of a group that is read from its own file alone, as Hydra would read it: reading all 16 anew takes 0.1 s.

Where a choice can do more than fill its own section (a `defaults` list, a `# @package` header), Hydra composes it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...tracking.files import MOST_COMPOSED, UnusableFileError, check_yaml, parse_yaml, read_bytes, read_text
from .experiment import CONF, Choice, shipped

Files = tuple[tuple[str, int, int], ...]  # of a user's directory: a path in it, the time of its change, its size
MOST_LOADED = 128  # files of a user's directory in one composition, where each time that one is named counts
_NAME = re.compile(r"\w+", re.ASCII)


def file_of(group: str, name: str, config_dir: Path | None = None) -> Path | None:
    """The YAML of this choice. Of two of the same name, ours and the user's, ours is taken, as Hydra does."""
    folders = [CONF, *([config_dir] if config_dir else [])]
    return next((file for folder in folders if (file := folder / group / f"{name}.yaml").is_file()), None)


def choices_of(group: str, config_dir: Path | None = None) -> list[Choice]:
    """Returns our choices and those in the user's directory, by name. Raises `ConfigError`."""
    found = {name: shipped(group, name) for name in _ours(group)}
    for file in sorted((config_dir / group).glob("*.yaml")) if config_dir else []:
        check_file(config_dir, f"{group}/{file.name}")
        try:
            content = parse_yaml(read_text(file))
        except (OSError, UnusableFileError) as error:
            raise ConfigError(f"{file} cannot be read ({error})") from None
        knobs = dict(content) if isinstance(content, dict) else {}
        found[file.stem] = Choice(name=file.stem, target=str(knobs.pop("_target_", "")), knobs=knobs)
    return [found[name] for name in sorted(found)]


def section(group: str, name: object, config_dir: Path | None) -> DictConfig | None:
    """Returns what the file of this choice says, which nobody may change; None where only Hydra knows."""
    content = stated(group, name, config_dir)
    return None if content is None or "defaults" in content else content


def stated(group: str, name: object, config_dir: Path | None) -> DictConfig | None:
    """Returns what the choice's own file says, beside which its `defaults` may say more; None where it says it of
    another section.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (file := file_of(group, name, config_dir)) is None:
        return None
    told = file.stat()
    return _content(file, told.st_mtime_ns, told.st_size)


def fills_its_own_section(group: str, name: object, config_dir: Path | None) -> bool:
    """Returns whether this choice, of any group, is one of ours or a file of the user's that changes no other section.

    Its defaults may be other such choices of its group, as those of a calibrated machine are.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (file := file_of(group, name, config_dir)) is None:
        return False
    if file.is_relative_to(CONF):
        return True
    told = file.stat()
    content = _content(file, told.st_mtime_ns, told.st_size)
    if content is None:
        return False
    inner = content.get("defaults") or []
    return all(each in ("_self_", *_ours(group)) for each in inner)


def _ours(group: str) -> list[str]:
    return [file.stem for file in (CONF / group).glob("*.yaml")]


@lru_cache(maxsize=256)
def _content(file: Path, changed: int, size: int) -> DictConfig | None:
    """`changed`, `size`: a file that has changed is read again. None: it has a header that places it elsewhere."""
    told = file.read_text(encoding="utf-8")
    if "@package" in re.sub(
        rf"^#\s*@package\s+(_group_|{re.escape(file.parent.name)})\s*$", "", told, count=1, flags=re.M
    ):
        return None
    content = OmegaConf.load(file)
    return content if isinstance(content, DictConfig) else None


# -- a user's directory


def files_in(config_dir: Path, groups: Iterable[str]) -> Files:
    """Returns the choices in a user's directory."""
    found = sorted(path for group in groups for path in (config_dir / group).glob("*.yaml") if path.exists())
    told = ((path.relative_to(config_dir), path.stat()) for path in found)
    return tuple((str(path), its.st_mtime_ns, its.st_size) for path, its in told)


@lru_cache(maxsize=16)
def check_files(config_dir: Path, files: Files) -> None:
    """Raises `ConfigError` for a file that nobody can read within bounds, and for one that would never be read: Hydra
    takes ours of the same name.
    """
    for name, _, _ in files:
        file, ours = config_dir / name, CONF / name
        check_file(config_dir, name)
        if ours.is_file() and ours.read_bytes() != read_bytes(file):
            raise ConfigError(
                f"{file}: {ours.parent.relative_to(CONF)}={ours.stem} is a choice of paceline's own, which is taken "
                "instead. Give the file another name"
            )


def check_file(folder: Path | None, name: str) -> None:
    """Bounds what Hydra reads without bounds, and keeps it inside of `folder`. Raises `ConfigError`.

    Args:
        folder: A user's directory; None: ours.
        name: The file's path below it, which a list of defaults may begin with `..`.
    """
    if os.path.normpath(name).startswith(os.pardir):
        raise _outside(name, folder)
    if folder is None:
        return
    file = folder / name
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):  # by a symbolic link
        raise _outside(name, folder)
    try:
        check_yaml(read_text(file))
    except FileNotFoundError:
        pass  # which Hydra says
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise ConfigError(f"{file} {error}") from None


def check_loaded(config_dir: Path | None, name: str, sizes: list[int]) -> None:
    """Bounds what lists of defaults copy into a configuration, also from few files. Raises `ConfigError`.

    Args:
        name: The file that was chosen, without its suffix.
        sizes: The number of values of each copy.
    """
    said = f"{MOST_LOADED} files" if len(sizes) > MOST_LOADED else f"{MOST_COMPOSED:,} values"
    if len(sizes) > MOST_LOADED or sum(sizes) > MOST_COMPOSED:
        raise ConfigError(f"{config_dir}/{name}.yaml: its defaults load more than {said}. Name fewer, each one once")


def _outside(name: str, folder: Path | None) -> ConfigError:
    where = "the folder of paceline's choices" if folder is None else f"--config-dir {folder}"
    file = name if folder is None else folder / name
    return ConfigError(f"{file}: is outside of {where}, and a choice reads no such file. Put a copy inside of it.")


def check_sections(plain: Mapping[str, Any], choices: Mapping[str, str], config_dir: Path) -> None:
    """Raises `ConfigError` for a user's file that is empty, or holds something else than a class and its knobs."""
    for group in BY_NAME:
        content, file = plain.get(group), config_dir / group / f"{choices.get(group)}.yaml"
        if not (isinstance(content, dict) and "_target_" in content) and file.is_file():
            raise ConfigError(f"{file}: must be a mapping with `_target_`, which names a class, and its knobs")
