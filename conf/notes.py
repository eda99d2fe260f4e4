"""Notes of objects that do not know under which names they were chosen."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A sentence about choices, shown after their names: `compress=topk, sync=bsp: ...`.

    Args:
        about: the groups of the choices, as `compress`.
        text: the sentence.
    """

    about: tuple[str, ...]
    text: str

    def named(self, choices: Mapping[str, str]) -> str:
        """Returns the sentence after the names of these choices, by group."""
        return f"{', '.join(f'{group}={choices[group]}' for group in self.about)}: {self.text}"
