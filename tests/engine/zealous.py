"""A made-up group `zeal`: how many times a step's gradients are taken. What a group, its choice and its users need."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge

from paceline.conf.groups import ConfigGroup
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp_naive import NaiveBSP


class Zeal(ABC):
    @abstractmethod
    def times(self) -> int: ...


class Calm(Zeal):
    def times(self) -> int:
        return 1


class Eager(Zeal):
    """Keeps a count of its own, so that two workers with one object would be seen."""

    def __init__(self, seed: int, most: Annotated[int, Ge(1)] = 2) -> None:
        self.seed, self.most, self.calls = seed, most, 0

    def times(self) -> int:
        self.calls += 1
        return self.most


class Zealous(NaiveBSP):
    def __init__(self, zeal: Zeal) -> None:
        super().__init__()
        self.zeal = zeal

    def update(self) -> None:
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad *= self.zeal.times()
        super().update()


class ZealousMean(Zealous):
    traits = replace(Zealous.traits, plain_mean=True)


class ZealousStrategy(DataParallel):
    def __init__(self, zeal: Zeal) -> None:
        super().__init__()
        self.zeal = zeal


GROUP = ConfigGroup(
    "zeal", "how eagerly a step is taken", modules=("zealous",), base="zealous.Zeal", injected=True, usual="calm"
)
