"""The interface of a sync mode that takes a worker back."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Rejoins(Protocol):
    """A mode that goes on while a worker is away, and from whose servers, or other workers, it begins again."""

    def rejoin(self) -> None:
        """Forgets what this worker had in memory alone: it has failed, and is back.

        Called before `skip` stands in for the `update` of the step that was lost.
        """
        ...
