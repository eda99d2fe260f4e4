"""What a sweep would run: every point composed, checked and planned, none run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..plan import Plan
from ..session import prepare
from .definition import Definition, Point

SAMPLED = 10  # points of a search that depends on its results


@dataclass(frozen=True)
class Planned:
    """A point. `plan` is None where it is refused: `why` says so."""

    number: int
    chosen: Point
    plan: Plan | None
    why: str


def count(definition: Definition) -> int:
    """Points to plan."""
    if definition.method == "grid":
        return min(definition.size(), definition.trials or definition.size())
    return min(definition.trials or SAMPLED, SAMPLED)


def preview(definition: Definition, progress: Callable[[int], None] = lambda _: None) -> Iterator[Planned]:
    """Every point of a grid; of another search as many as `count`, drawn at random: what it will choose depends on its
    results.
    """
    for number, chosen in enumerate(_points(definition)):
        yield _planned(definition, number, chosen)
        progress(number + 1)


def _points(definition: Definition) -> Iterator[Point]:
    if definition.method == "grid":
        yield from (point for point, _ in zip(definition.points(), range(count(definition)), strict=False))
        return
    from .study import sample

    yield from sample(definition, count(definition))


def _planned(definition: Definition, number: int, chosen: Point) -> Planned:
    overrides = definition.overrides(chosen, None)
    directory = Path(definition.config_dir) if definition.config_dir else None
    try:
        plan = prepare(overrides, directory, definition.allow_modules).plan()
    except Exception as error:
        if getattr(error, "exit_code", None) is None:
            raise
        return Planned(number, chosen, None, " ".join(str(error).split()))
    return Planned(number, chosen, plan, "")
