"""The common parts of every layout of a GPT: samples of a replica, micro-batches, and the settings that are typed."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..cost.layout import DTYPES, Offload, ParallelLayout, Recompute
from ..strategies.sync.sharded_bsp import SHARDS
from .candidate import Candidate, Settings
from .memory import hosts_of


@dataclass(frozen=True, slots=True)
class PrunedFamily:
    """A layout that a rule excludes, whatever its memory."""

    family: str
    why: str


@dataclass(frozen=True)
class LayoutProblem:
    """The hardware and the batch for which layouts are enumerated: workers with a device each.

    Args:
        devices: of a host.
        batch: samples of a step, of all replicas.
        precision: the best that the hardware has, or the one that was typed.
        wide: families that compute in float32 alone.
        rounding: families that keep weights and gradients in `precision`, not in float32.
    """

    workers: int
    devices: int
    batch: int
    precision: str = "fp32"
    wide: frozenset[str] = frozenset()
    rounding: frozenset[str] = frozenset()

    @property
    def hosts(self) -> int:
        return hosts_of(self.workers, self.devices)

    def precision_of(self, family: str) -> str:
        return "fp32" if family in self.wide else self.precision


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def samples_of(place: LayoutProblem, replicas: int, family: str) -> int | PrunedFamily:
    """Returns the samples of one replica in a step."""
    if place.batch % replicas:
        return PrunedFamily(family, f"{place.batch} samples a step are not divided by {replicas} replicas")
    return place.batch // replicas


def pieces(samples: int) -> list[int]:
    return [2**i for i in range(samples.bit_length()) if samples % 2**i == 0]


def flags(*names: str) -> list[dict[str, bool]]:
    made: list[dict[str, bool]] = [{}]
    for name in names:
        made = [{**each, name: value} for each in made for value in (False, True)]
    return made


def candidate_of(
    place: LayoutProblem, family: str, group: str, knobs: dict[str, object], layout: ParallelLayout, **more: object
) -> Candidate:
    precision = place.precision_of(family)
    settings: Settings = (("strategy", family), *((key, typed(value)) for key, value in knobs.items()))
    return Candidate(
        family,
        group,
        (*settings, ("precision", precision), ("batch_size", str(place.batch // layout.replicas))),
        place.workers,
        place.hosts,
        layout,
        **more,  # pyright: ignore[reportArgumentType]
    )


def typed(value: object) -> str:
    """Returns the value as it is written in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def layout_of(
    place: LayoutProblem,
    family: str,
    samples: int,
    micro_batches: int,
    replicas: int,
    recompute: bool,
    *,
    tensor: int = 1,
    stages: int = 1,
    chunks: int = 1,
    zero: int = 0,
    offload: Offload = "none",
    sequence: bool = False,
) -> ParallelLayout:
    again: Recompute = "full" if recompute else "none"
    dtype = DTYPES[place.precision_of(family)]
    return ParallelLayout(
        batch=samples * replicas,
        micro_batch=samples // micro_batches,
        data=replicas,
        tensor=tensor,
        stages=stages,
        chunks=chunks,
        zero=zero,
        recompute=again,
        offload=offload,
        fused=True,
        sequence=sequence,
        overlap=True,
        dtype=dtype,
        kept=dtype if family in place.rounding else "float32",
    )


def shards_of(replicas: int) -> Iterator[tuple[int, str]]:
    yield from enumerate(SHARDS if replicas > 1 else SHARDS[:1])
