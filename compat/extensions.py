"""Finds the folder in which torch builds an extension: `torch.utils.cpp_extension._get_build_directory`."""

from pathlib import Path


def build_directory(name: str) -> Path:
    """Returns the folder of the extension of that name; it is made. Raises `OSError`."""
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(name, verbose=False))
