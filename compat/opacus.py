"""Opacus's accountant by itself: importing opacus takes two seconds, for its training, of which nothing is used.

`opacus.accountants.analysis.rdp` is public and reads nothing of the package but numpy and scipy; it is loaded from its
file. A test holds that it is what an import of the package gives.
"""

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

NAME = "opacus.accountants.analysis.rdp"


@cache
def accountant() -> ModuleType | None:
    """None where opacus is not installed."""
    if (loaded := sys.modules.get(NAME)) is not None:
        return loaded
    package = find_spec("opacus")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent.joinpath(*NAME.split(".")[1:]).with_suffix(".py")
    spec = spec_from_file_location("opacus_rdp", file)
    assert spec is not None and spec.loader is not None, file
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
