"""Prints what the project depends on, without upper bounds, a line each for pip: see `make newest`."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def unbounded(requirement: str) -> str:
    """`name[extra]>=1.2,<2` without what follows the comma; what only some systems need keeps its condition."""
    return re.sub(r",\s*<[^;]*", "", requirement).replace(" ", "")


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    print(*map(unbounded, project["dependencies"]), sep="\n")
