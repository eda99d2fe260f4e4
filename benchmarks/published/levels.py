"""The level of a software on a generation of devices: the `level` of `paceline.cost.device.Efficiency` at which its
runs are predicted as they were measured.

The runs of one group on one kind of device give one figure, their median: that of the same bits, or else the mean of
all bits. A level is the mean of the logarithms of its figures and of the level of the generation before, which counts
as much as one of them; it begins at 1. A software without figures of a generation or of those before it has the mean
of the others' levels. The level of a run leaves out the figures of its own group on its kind of device: no run has a
part in its own prediction. levels.csv has the figures that `--fit` prints.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from paceline.cost.device import Efficiency
from paceline.cost.devices import GENERATIONS, generation

from .rows import VTRAIN, Case, measured, software_of

FIGURES = Path(__file__).with_name("levels.csv")
BITS = {"float8": 8, "float4": 4, "float32": 32, "tf32": 32}  # of a product's inputs; else 16
MOST = 8.0  # of a level
PLANNED = "PyTorch"  # the software that paceline runs


class AlikeRuns(NamedTuple):
    software: str
    generation: str
    bits: int
    group: str
    device: str


def predicted(case: Case, fits: Efficiency, whole_group: bool = False) -> float:
    """Seconds of a step, by a level without the figures of its own group on its device, or on all."""
    return case.predicted(replace(fits, level=level(alike(case), whole_group)))


def beside_plan(case: Case, fits: Efficiency) -> float:
    """Seconds of a step, as `paceline plan` has them: with the kernels of PyTorch. The level leaves out the case's own
    figures, but PyTorch's where its generation has no others.
    """
    own = alike(case)
    others = {(each.group, each.device) for each in figures() if each[:2] == own[:2]} - {(own.group, own.device)}
    alone = own.software == PLANNED and not others
    group = "" if alone or own.group.startswith(VTRAIN) else own.group
    return case.predicted(replace(fits, level=level(own._replace(software=PLANNED, group=group))))


def level(own: AlikeRuns, whole_group: bool = False) -> float:
    """Returns the level of runs like `own`, without the figures of its own group on its device, or on all. vTrain's
    runs, which the rates were fitted on, have 1.
    """
    if own.group.startswith(VTRAIN):
        return 1.0
    shown = {
        place: log(figure)
        for place, figure in figures().items()
        if place.group != own.group or not (whole_group or place.device == own.device)
    }
    known = {name: _known(own._replace(software=name), shown) for name in {each.software for each in shown}}
    its = known.get(own.software)
    if its is None:
        others = [each for each in known.values() if each is not None]
        its = fmean(others) if others else 0.0
    return exp(its)


def _known(own: AlikeRuns, shown: dict[AlikeRuns, float]) -> float | None:
    """Returns the logarithm of a level, of a software's own figures; None where it has none."""
    known, seen = 0.0, False
    for name in GENERATIONS:
        groups: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for place, x in shown.items():
            if place[:2] == (own.software, name):
                groups[place.group, place.device][place.bits] = x
        each = [by_bits.get(own.bits, fmean(by_bits.values())) for by_bits in groups.values()]
        known, seen = (known + sum(each)) / (1 + len(each)), seen or bool(each)
        if name == own.generation:
            break
    return known if seen else None


@cache
def figures() -> dict[AlikeRuns, float]:
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return {
            AlikeRuns(row["software"], row["generation"], int(row["bits"]), row["group"], row["device"]): float(
                row["level"]
            )
            for row in csv.DictReader(file)
        }


def fitted_levels(cases: Iterable[Case], fits: Efficiency) -> list[str]:
    """Returns the lines of levels.csv, from these runs."""
    levels: dict[AlikeRuns, list[float]] = defaultdict(list)
    for case in cases:
        if case.seconds:
            levels[alike(case)].append(_needed(case, fits))
    heading = ",".join((*AlikeRuns._fields, "runs", "level"))
    return [
        heading,
        *(
            ",".join([f'"{each}"' if "," in str(each) else str(each) for each in place])
            + f",{len(its)},{median(its):.3f}"
            for place, its in sorted(levels.items())
        ),
    ]


def alike(case: Case) -> AlikeRuns:
    device = case.cluster.device.name
    bits = BITS.get(case.layout.dtype, 16)
    software = "DeepSpeed" if case.row["group"].startswith(VTRAIN) else software_of(case.row)
    return AlikeRuns(software, generation(device), bits, case.row["group"], device)


def _needed(case: Case, fits: Efficiency) -> float:
    """Returns the level at which the step takes as long as was measured: by halving, as a step takes longer the higher
    the level.
    """
    low, high = 1 / MOST, MOST
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if case.predicted(replace(fits, level=middle)) > measured(case) else (middle, high)
    return low
