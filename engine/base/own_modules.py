"""Lets Python find the user's own modules where the user is."""

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from os.path import realpath
from pathlib import Path


def find_modules(allowed: Sequence[str]) -> dict[str, str]:
    """Adds the current folder behind all others that modules are imported from, if one of `allowed` lies only there.

    An installed or standard module of the same name goes before it, as the folder may be somebody else's.

    Returns:
        The allowed names that were in the folder in vain, with what is imported instead.
    """
    folder, instead = str(Path.cwd()), dict[str, str]()
    for name in dict.fromkeys(module.partition(".")[0] for module in allowed):
        if (here := PathFinder.find_spec(name, [folder])) is None:
            continue
        # not importlib.util.find_spec, which tells of what was imported before
        taken = next(filter(None, (finder.find_spec(name, None) for finder in sys.meta_path)), None)
        if taken is not None and taken.origin and realpath(taken.origin) != realpath(here.origin or ""):
            instead[name] = taken.origin
        elif folder not in sys.path:
            sys.path.append(folder)
    return instead
