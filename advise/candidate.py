"""One way to train: what is chosen, as it would be typed, and what is predicted of it."""

from dataclasses import dataclass
from typing import Literal

from ..cost.layout import ParallelLayout

Settings = tuple[tuple[str, str], ...]  # key and value of overrides, in the order in which they are typed
Schedule = Literal["naive", "gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """`family`: the strategy. `group`: which of its kind, of which one is shown, the best."""

    family: str
    group: str
    settings: Settings
    workers: int
    hosts: int
    layout: ParallelLayout | None = None  # None: no closed form knows it
    shard: int = 0  # ZeRO stage by sync.shard
    schedule: Schedule | None = None
    stage_recompute: bool = False  # of a pipeline's stages, from what enters them
    raced: str = ""  # why only a race can say what it is worth

    @property
    def kind(self) -> tuple[str, str, int]:
        """Returns what one row is shown of: its family, group and number of workers."""
        return self.family, self.group, self.workers


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bytes, seconds and dollars of a candidate; None: not known. `over`: by what it does not fit, in bytes.

    `exact`: memory and bytes are the plan's; else they are closed forms'. `unstated`: `sent` is theirs all the same, as
    the plan states none.
    """

    candidate: Candidate
    seconds: float | None  # of a step, on average with failures if the question has some
    device: int  # bytes that are needed of a device, or of the host where workers compute on the CPU
    host: int
    over_device: int
    over_host: int
    sent: float | None  # bytes that a worker sends in a step
    dollars: float | None = None  # of all that is trained, or of a step
    exact: bool = False
    unstated: bool = False
    why: str = ""  # refused, in the plan's own words
    untimed: str = ""  # why there are no seconds
    goodput: float | None = None  # share of `seconds` that is kept work; None: nothing fails
    beyond_margin: int = 0  # bytes that a device lacks for the most that published runs held beyond their prediction

    @property
    def undisturbed(self) -> float | None:
        """Returns the seconds of a step in which nothing fails."""
        return None if self.seconds is None else self.seconds * (1.0 if self.goodput is None else self.goodput)

    @property
    def fits(self) -> bool:
        return self.over_device <= 0 and self.over_host <= 0 and not self.why

    @property
    def roomy(self) -> bool:
        """Returns whether it fits with the margin of published runs."""
        return self.fits and self.beyond_margin <= 0
