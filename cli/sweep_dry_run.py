"""`paceline sweep --dry-run`: the plan of every point, in a table or as JSON."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .output import aligned, note, note_counted, show, show_json

if TYPE_CHECKING:
    from ..sweep.definition import Definition
    from ..sweep.preview import Planned

WIDEST = 60  # characters of a cell


def show_points(definition: "Definition | None", format: str, array: int | None, directory: Callable[[], Path]) -> None:
    """Plans every point. Raises `ConfigError` if one is refused.

    `directory`: of the sweep, for the script of an array.
    """
    from ..sweep.preview import count, preview
    from .sweep_view import counting

    if definition is None:
        raise ConfigError("--dry-run: give the definition that is to be planned")
    total = count(definition)
    with counting(total) as progress:
        planned = list(preview(definition, progress))
    if format == "json":
        show_json([_raw_point(i, point) for i, point in enumerate(planned)])
    else:
        show("\n".join(aligned(_planned_table(definition, planned), numbers_from=1)))
    note_counted(Counter(text for point in planned for text in point.notes), "points")
    _note_lacks(planned)
    runs = total * (definition.seeds or 1)
    if definition.method == "grid":
        note(f"\n{counted(total, 'point')}, {counted(runs, 'run')}; nothing was trained")
    elif definition.method == "random":
        note(f"\n{total} of {definition.trials} points that are drawn at random; nothing was trained")
    else:
        note(
            f"\n{counted(total, 'point')} drawn at random from a search of {definition.trials} trials: "
            "which it takes depends on its results, so that this is partial; nothing was trained"
        )
    refused = [f"point {i}: {_refusal(point, point.why)}" for i, point in enumerate(planned) if point.why]
    if refused:
        raise ConfigError("\n".join([*refused, f"{len(refused)} of {counted(total, 'point')} refused"]))
    if array is not None and format == "table":
        from ..sweep.array import job_array

        show(f"\n{job_array(directory(), definition).text(array).rstrip()}")


def _note_lacks(planned: list["Planned"]) -> None:
    """Notes the points that a device has too little memory for, or may have."""
    uses = [(str(i), point.device) for i, point in enumerate(planned) if point.device is not None]
    for lacking, words in (
        ([i for i, use in uses if not use.fits], "not enough memory on a device; paceline plan --fit says what fits"),
        ([i for i, use in uses if use.fits and use.beyond_margin > 0], "perhaps not enough memory on a device"),
    ):
        if lacking:
            note(f"note: {words}: point{'s' * (len(lacking) > 1)} {', '.join(lacking)}")


def _raw_point(i: int, point: "Planned") -> dict[str, Any]:
    """Bytes, bytes a step, seconds; null where the data must say, and everywhere in a point that is refused."""
    from .step_time import raw_memory

    facts = asdict(replace(point, device=None))
    chosen, why = facts.pop("chosen"), facts.pop("why")
    facts.pop("device")
    facts["device_memory"] = None if point.device is None else raw_memory(point.device)
    known = dict.fromkeys(facts) if why else facts
    return {"point": i, "parameters": chosen, **known, "why": why or None}


def _planned_table(definition: "Definition", planned: list["Planned"]) -> list[list[str]]:
    from ..tracking.compare import human_bytes

    serves = ["servers"] if any(point.servers for point in planned) else []
    modelled = any(point.virtual_seconds is not None for point in planned)
    more = ["virtual time, at least"] if modelled else []
    table = [["point", *definition.parameters, "workers", *serves, "steps", "sent/step", "memory", *more]]
    for i, point in enumerate(planned):
        chosen = [_cell(point.chosen.get(key, "-")) for key in definition.parameters]
        if point.why:
            table.append([str(i), *chosen, "refused", *["-" for _ in [*serves, *more]], "-", "-", "-"])
            continue
        steps = f"{point.steps:,}" if point.steps is not None else "varies"
        sent = human_bytes(point.bytes_per_step) if point.bytes_per_step is not None else "varies"
        virtual = f"{point.virtual_seconds:.3g} s" if point.virtual_seconds is not None else "-"
        cells = [
            str(point.workers),
            *[str(point.servers) for _ in serves],
            steps,
            sent,
            human_bytes(point.memory),
            *[virtual for _ in more],
        ]
        table.append([str(i), *chosen, *cells])
    return table


def _refusal(point: "Planned", why: str) -> str:
    cells = _cells(point)
    return why if why.startswith(f"{cells}: ") else f"{cells}: {why}"


def _cells(point: "Planned") -> str:
    return " ".join(f"{key}={_cell(value)}" for key, value in point.chosen.items())


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
