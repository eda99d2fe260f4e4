"""Workers at the points of a grid with named axes (as torch's DeviceMesh has them, and torchtitan's ParallelDims).

    replica   replicas of the model: each has samples of its own, a sync mode makes them agree
    stage     a pipeline's: each has some of the layers
    tensor    each has a piece of a layer's weights, and computes a piece of its output, of the same samples
    domain    each has a piece of every sample

The last axis varies fastest with the rank: of {"replica": 2, "stage": 3} rank 4 is at replica 1, stage 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

AXES = ("replica", "stage", "tensor", "domain")
ALIKE = ("tensor", "domain")  # axes along which workers draw the same random numbers, as one worker would


@dataclass(frozen=True)
class Mesh:
    axes: Mapping[str, int]  # name -> how many; in the order of AXES

    def __post_init__(self) -> None:
        assert list(self.axes) == [axis for axis in AXES if axis in self.axes], f"axes {list(self.axes)}"
        assert all(size >= 1 for size in self.axes.values())

    @property
    def size(self) -> int:
        return prod(self.axes.values())

    def position(self, rank: int) -> dict[str, int]:
        """The coordinate on each axis."""
        found: dict[str, int] = {}
        for axis in reversed(list(self.axes)):
            rank, found[axis] = divmod(rank, self.axes[axis])
        assert rank == 0, "no rank of this mesh"
        return {axis: found[axis] for axis in self.axes}

    def rank(self, position: Mapping[str, int]) -> int:
        rank = 0
        for axis, size in self.axes.items():
            assert 0 <= position[axis] < size
            rank = rank * size + position[axis]
        return rank

    def drawing(self, rank: int) -> int:
        """The rank whose random numbers `rank` draws."""
        position = self.position(rank)
        return self.rank({axis: 0 if axis in ALIKE else i for axis, i in position.items()})

    def along(self, rank: int, axis: str) -> list[int]:
        """The ranks, `rank` among them, that differ from it on this axis alone."""
        axes = list(self.axes)
        stride = prod(self.axes[after] for after in axes[axes.index(axis) + 1 :])
        first = rank - stride * self.position(rank)[axis]
        return list(range(first, first + stride * self.axes[axis], stride))
