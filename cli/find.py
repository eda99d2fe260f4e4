"""Finds the one run that is named on the command line."""

import shlex
from typing import TYPE_CHECKING

from .output import shortest

if TYPE_CHECKING:
    from ..tracking.run_data import RunData


def find(name: str) -> "RunData":
    """Raises RunNameError or CorruptRunError."""
    from ..engine import ROOT
    from ..tracking import sources
    from ..tracking.errors import RunNameError
    from ..tracking.visible import visible

    found = sources.gather([name], ROOT, records=False)
    if len(found) > 1:
        examples = ", ".join(visible(each.name) for each in found[:3])
        one = next((text for each in found if (text := _as_typed(name, each))), None)
        such = f", such as {one}" if one else ""
        raise RunNameError(
            f"{name}: holds {len(found)} runs ({examples}, ...). Choose one{such}; "
            f"paceline compare {shlex.quote(name)} takes all"
        )
    return found[0] if found[0].path is None else sources.gather([str(found[0].path)], ROOT)[0]


def _as_typed(name: str, run: "RunData") -> str | None:
    """Returns a name for one of the runs that `name` holds; None if it has none."""
    if run.path is not None:
        return shlex.quote(f"{name.rstrip('/')}/{run.name}")
    return shlex.quote(str(shortest(run.file))) if run.file is not None else None
