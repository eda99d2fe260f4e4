"""`paceline diff`: what differs between two runs."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .completion import complete_source
from .output import aligned, note_damage, show, show_json

if TYPE_CHECKING:
    from ..tracking.difference import Difference, Pair

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, SWEEP/RUN, a directory.", autocompletion=complete_source)
]
Format = Annotated[Literal["text", "json"], typer.Option(help="json: raw values, with units in the names.")]


def diff(first: Run, second: Run, format: Format = "text") -> None:
    """Say what differs between two runs: configuration, versions and machine, results with their difference.

    The exit status is 0 whether or not something differs, 2 for a run that is not there, 7 for a damaged one.

    \b
    paceline diff first-asp first-bsp
    paceline diff my-sweep/0001-bsp my-sweep/0002-ssp --format json
    """
    from ..tracking import sources
    from ..tracking.difference import difference
    from .show import find

    runs = [find(first), find(second)]
    note_damage(runs)
    for run in runs:
        sources.check(run)
    found = difference(*runs)
    if format == "json":
        show_json(found.plain())
    else:
        show(_text(found))


def _text(found: "Difference") -> str:
    head = ["", found.first, found.second, "difference", ""]
    apart = [pair for pair in found.results if pair.first != pair.second]
    alike = len(found.results) - len(apart)
    weights = [pair for pair in apart if pair.key == "model_sha256" and pair.first and pair.second]
    measured = [pair for pair in apart if pair.key != "model_sha256"]
    results = _table([head, *(pair.texts() for pair in measured)]) if measured else []
    results += [f"{alike} other{'s are' if alike > 1 else ' is'} the same"] if alike else []
    results += ["the weights differ"] if weights else []
    sections = [
        ["configuration", *_section(found.configuration, found)],
        ["environment", *_section(found.environment, found)],
        ["results", *(results or ["none yet"])],
    ]
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, *lines in sections)


def _section(pairs: "list[Pair] | None", found: "Difference") -> list[str]:
    if pairs is None:
        return ["not recorded of both"]
    return _table([["", found.first, found.second], *(pair.texts()[:3] for pair in pairs)]) if pairs else ["the same"]


def _table(table: list[list[str]]) -> list[str]:
    from ..tracking.visible import visible

    return aligned([[visible(cell) for cell in row] for row in table], numbers_from=1)
