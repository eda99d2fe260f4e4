"""Finds the attributes of a user's optimizer that steps change and that no checkpoint has."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...compat.storages import version_of

OURS = ("torch", "paceline", "deepspeed")
SAVED = ("state", "param_groups", "defaults", "step")  # or, as the counter of a schedule, none of the optimizer's


class Unsaved:
    """Numbers and tensors in the attributes of an optimizer, also in collections and in optimizers in it.

    A class that loads its state by itself has none.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        theirs = [each for each in type(optimizer).__mro__[:-1] if each.__module__.split(".")[0] not in OURS]
        loads = any(name in vars(each) for each in theirs for name in ("load_state_dict", "__setstate__"))
        self._optimizer = optimizer if theirs and not loads else None
        self._before = self._values()

    def changed(self) -> list[str]:
        """Returns the names of the attributes that have changed since this was made."""
        return [name for name, its in self._values().items() if not _same(self._before.get(name, []), its)]

    def told(self, optimizer: str, also: str = "") -> str:
        """Returns a note on what `changed` names, the first time that there is something; "" otherwise.

        `also`: another way to keep it.
        """
        names = self.changed()
        if not names:
            return ""
        self._optimizer = None
        return (
            f"{optimizer}: steps change {', '.join(names)}, which no checkpoint has: a resumed run begins with the "
            f"first values. Keep them in `state` or in a group, or save them in `state_dict`{also}."
        )

    def _values(self) -> dict[str, list[tuple[Any, int]]]:
        """Returns the leaves of each attribute, with the versions of tensors."""
        found: dict[str, list[tuple[Any, int]]] = {}
        for name, value in vars(self._optimizer).items() if self._optimizer is not None else ():
            if name not in SAVED:
                inner = isinstance(value, Optimizer) and value.state is not getattr(self._optimizer, "state", None)
                leaves = _leaves(value.state if inner else value)
                found[name] = [(each, _version(each)) for each in leaves if type(each) in (int, float, Tensor)]
        return found


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the values in a collection, and in those in it; each collection is looked at once."""
    seen, waiting = set[int](), [value]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping | list | tuple | deque):
            yield each
        elif id(each) not in seen:
            seen.add(id(each))
            waiting += each.values() if isinstance(each, Mapping) else each


def _version(leaf: Any) -> int:
    return version_of(leaf) if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def _same(before: list[tuple[Any, int]], after: list[tuple[Any, int]]) -> bool:
    return len(before) == len(after) and all(
        version == now and (old is new or (not isinstance(old, Tensor) and not isinstance(new, Tensor) and old == new))
        for (old, version), (new, now) in zip(before, after, strict=True)
    )
