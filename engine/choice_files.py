"""A choice of a group that is read from its own file alone, as Hydra would read it: reading all 16 anew takes 0.1 s.

Where a choice can do more than fill its own section (a `defaults` list, a `# @package` header), Hydra composes it.
"""

import re
from functools import lru_cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from .experiment import CONF

_NAME = re.compile(r"\w+", re.ASCII)


def file_of(group: str, name: str, config_dir: Path | None = None) -> Path | None:
    """The YAML of this choice. Of two of the same name, ours and the user's, ours is taken, as Hydra does."""
    folders = [CONF, *([config_dir] if config_dir else [])]
    return next((file for folder in folders if (file := folder / group / f"{name}.yaml").is_file()), None)


def section(group: str, name: object, config_dir: Path | None) -> DictConfig | None:
    """Returns what the file of this choice says, which nobody may change; None where only Hydra knows."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (file := file_of(group, name, config_dir)) is None:
        return None
    told = file.stat()
    return _read(file, told.st_mtime_ns, told.st_size)


def fills_its_own_section(group: str, name: object, config_dir: Path | None) -> bool:
    """Whether this choice, of any group, is one of ours or a file of the user's that changes no other section.

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


def _read(file: Path, changed: int, size: int) -> DictConfig | None:
    content = _content(file, changed, size)
    return None if content is None or "defaults" in content else content


@lru_cache(maxsize=256)
def _content(file: Path, changed: int, size: int) -> DictConfig | None:
    """`changed`, `size`: a file that has changed is read again. None: it has a header that places it elsewhere."""
    if "@package" in file.read_text(encoding="utf-8"):
        return None
    content = OmegaConf.load(file)
    return content if isinstance(content, DictConfig) else None
