"""Members of earlier versions that a user's class may still define, and that a run calls no more."""

from collections.abc import Iterator

from .staged import StagedStrategy
from .strategy import Strategy
from .sync import Sync
from .with_servers import SyncWithServers

RENAMED = {"axes": "mesh", "part_state": "full_state", "rehearse": "profile", "settled": "resolved"}  # of strategies


def uncalled(choice: Strategy | Sync) -> Iterator[str]:
    """Yields what to say of members that a class defines in vain, after the name of the choice."""
    kind = type(choice)
    for name, now in RENAMED.items():
        if isinstance(choice, Strategy) and hasattr(kind, name):
            yield f"defines {name}, which a run does not call. Name it {now}, as in {Strategy.__module__}."
    rare = SyncWithServers if isinstance(choice, Sync) else StagedStrategy  # which has what all had before
    names = [name for name in vars(rare) if not name.startswith("_") and hasattr(kind, name)]
    if names and not isinstance(choice, rare):
        yield (
            f"defines {', '.join(names)}, which a run calls of classes derived from {rare.__name__} alone. Derive from "
            f"it ({rare.__module__}), or choose other names."
        )
