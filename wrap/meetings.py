"""The places in a script's loop that all workers come to after the same batch and the same step."""

from collections.abc import Callable

from ..comm.key_values import KeyValues
from .errors import ScriptError


class Meetings:
    """`taken`: batches that this worker has fetched."""

    def __init__(self, key_values: KeyValues, workers: int, begun: Callable[[], int]) -> None:
        """`begun`: returns the steps so far, with one that has begun."""
        self._key_values, self._workers, self._begun = key_values, workers, begun
        self._number = self.taken = 0
        key_values.live_metrics = lambda: f"{self.taken} {begun()}"

    def take(self) -> None:
        """Another batch is fetched."""
        self.taken += 1

    def meet(self, does: str) -> None:
        """Waits for all workers, which do the same. Raises `ScriptError` where one does not.

        Args:
            does: what this worker does, for messages.
        """
        if self._workers == 1:
            return
        self._number += 1
        said = f"{does} after batch {self.taken}"
        self._key_values.post(f"meets/{self._number}/{self._key_values.rank}", said)
        for rank in range(self._workers):
            its = self._key_values.read(f"meets/{self._number}/{rank}", rank, lambda: self._look(said))
            if its != said:
                raise self._apart(said, rank, its)

    def _look(self, said: str) -> ScriptError | None:
        """Returns an error if another worker is further than this one."""
        for rank, told in self._key_values.all_live_metrics().items():
            taken, begun = map(int, told.split())
            if taken > self.taken:
                return self._apart(said, rank, f"takes batch {taken}")
            if begun > self._begun():
                return self._apart(f"{said} and {self._begun()} steps", rank, f"makes step {begun}")
        return None

    def _apart(self, said: str, other: int, its: str) -> ScriptError:
        return ScriptError(
            f"wrap: worker {self._key_values.rank} {said}, and worker {other} {its}. Make the same steps, passes and "
            "calls of run.save on all workers: a break, a continue, a return or run.save on one of them alone leaves "
            "the others waiting"
        )
