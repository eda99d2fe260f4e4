"""Prints what the project depends on, a line each for pip: `newest` without upper bounds, `oldest` at lower ones."""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def newest(requirement: str) -> str:
    """Returns `name[extra]>=1.2` of `name[extra]>=1.2,<2`; what only some systems need keeps its condition."""
    return re.sub(r",\s*<[^;]*", "", requirement).replace(" ", "")


def oldest(requirement: str) -> str:
    """Returns `name[extra]==1.2` of `name[extra]>=1.2,<2`."""
    return newest(requirement).replace(">=", "==", 1)


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    print(*map({"newest": newest, "oldest": oldest}[sys.argv[1]], project["dependencies"]), sep="\n")
