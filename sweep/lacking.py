"""Finds what a sweep's runs need and this machine lacks, and what refuses all of them, once, before the first trial.

Otherwise every trial would begin, and fail for the same reason.
"""

from collections.abc import Iterator
from pathlib import Path

from ..conf.errors import ConfigError
from ..engine.api.preparing import check_data, prepare
from ..engine.base.failures import first_line_of
from ..engine.base.lacks import LACKS
from .definition import WAY, Definition, Point, Range, Space, Values
from .preview import MANY, count, preview
from .study import Study

NEEDING = ("data", "tracking", "privacy", "secure")  # groups with choices that take an optional package, or files


def check_machine(definition: Definition) -> None:
    """Raises the first of LACKS that a run of the sweep would end with, and `ConfigError` where no run can begin.

    Looks at one point for each choice of the groups in NEEDING. A point that is refused for another reason is left to
    its trial, which says so, unless all points of a grid are, or all that another search may draw for one reason.
    """
    directory = Path(definition.config_dir) if definition.config_dir else None
    refused: list[Exception] = []
    for point in _points(definition):
        try:
            seed = definition.each_seed()[0]
            prepared = prepare(definition.overrides(point, seed), directory, definition.allow_modules)
            prepared.plan()
            check_data(prepared)
        except LACKS:
            raise
        except Exception as error:
            refused.append(error)
    if not refused or count(definition) >= MANY:
        return
    reason = first_line_of(refused[0])
    if all(each.why and (definition.method == "grid" or each.why == reason) for each in preview(definition)):
        raise ConfigError(f"no point of the sweep can run: {reason}")


def has_more(study: Study) -> bool:
    """Returns whether resuming the sweep would run anything: it would if its definition has no end."""
    definition, every = study.definition, study.trials()
    sizes = [definition.size() if definition.finite else None, definition.trials]
    wanted = min((size for size in sizes if size is not None), default=None)
    ended = sum(done.state not in ("waiting", "running") for done in every)
    return wanted is None or ended < wanted or bool(study.left_over())


def _points(definition: Definition) -> Iterator[Point]:
    """The first value of everything, and then every other choice that may need something, one after another."""
    first = {key: _first(space) for key, space in definition.parameters.items()}
    yield definition.settled(first)
    for key, space in definition.parameters.items():
        if isinstance(space, Values) and (key in NEEDING or key == WAY):
            for text in space.texts[1:]:
                if key != WAY or _needs(dict(definition.ways).get(text, ())):
                    yield definition.settled(first | {key: text})


def first_point(definition: Definition) -> Point:
    """Returns the first value of everything."""
    return next(_points(definition))


def _first(space: Space) -> str | float:
    return space.low if isinstance(space, Range) else space.texts[0]


def _needs(overrides: tuple[str, ...]) -> bool:
    return any(text.lstrip("+~").partition("=")[0] in NEEDING for text in overrides)
