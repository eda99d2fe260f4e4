"""The kinds of values that a worker or a server shows in a picture of a run (`Shown` in protocols.py).

They are few, so that one player draws them all (tracking/drawn/player.py).
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeldNumber:
    """A number. `within`: the most that those who go on may be ahead of the last of them; None for no bound."""

    value: float
    within: float | None = None


@dataclass(frozen=True)
class HeldCells:
    """A row of cells. `texts`: what each says, a few characters. `shares`: how full each is, from 0 to 1."""

    texts: tuple[str, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class HeldPoint:
    """A vector like the weights of the whole model, [n]. It is drawn in the plane of all weights of the run.

    `ties`: springs tie the replicas to it.
    """

    vector: Tensor
    ties: bool = False


@dataclass(frozen=True)
class HeldRows:
    """Vectors that something is made of, [rows, n], drawn in a plane of their own.

    `of`: the worker of each row. `result`: what was made of them, [n]. `apart`: workers that are drawn as others.
    """

    rows: Tensor
    of: tuple[int, ...]
    result: Tensor
    apart: frozenset[int] = frozenset()


Held = HeldNumber | HeldCells | HeldPoint | HeldRows
