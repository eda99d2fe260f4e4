"""A pipeline's schedule as modelled and, below it, as measured, on one time axis: pictures, and a sentence."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from ..drawn.schedule import as_svg
from ..run_data import RunData
from ..text import shown

MOST_DRAWN = 20_000  # passes in a report
Plain = dict[str, Any]


def schedules(runs: Sequence[RunData]) -> list[Plain]:
    """Returns the schedules of the runs that kept one: [{"name", "says", "pictures": [an image's address]}]."""
    found: list[Plain] = []
    left = MOST_DRAWN
    for run in runs:
        if run.schedule is None:
            continue
        tables = _on_one_clock(run.schedule)
        count = sum(len(row["actions"]) for table in tables.values() for row in table["workers"])
        drawn = 0 < count <= left and all(any(row["actions"] for row in table["workers"]) for table in tables.values())
        left -= count if drawn else 0
        says = _sentence(run.schedule) + ("" if drawn else " It has more passes than are drawn.")
        found.append({"name": shown(run.name), "says": says, "pictures": _pictures(tables) if drawn else []})
    return found


def _pictures(tables: dict[str, Plain]) -> list[str]:
    """An image runs no script and fetches nothing, whatever is in it."""
    until = max(table["time"] for table in tables.values())
    drawn = [as_svg(f"{name}: bubble {table['bubble']:.1%}", table, until) for name, table in tables.items()]
    return [f"data:image/svg+xml;base64,{b64encode(each.encode()).decode()}" for each in drawn]


def _on_one_clock(schedule: Plain) -> dict[str, Plain]:
    """Floating-point operations at the rate at which all passes together take as long as they did."""
    modelled, measured = schedule["modelled"], schedule["measured"]
    if measured is None:
        return {"Modelled": modelled}
    rate = 1.0
    if modelled["unit"] != "seconds":
        rate = _busy(measured) / _busy(modelled) if _busy(modelled) else 1.0
    workers = [
        {
            **row,
            "actions": [{**each, "start": each["start"] * rate, "end": each["end"] * rate} for each in row["actions"]],
        }
        for row in modelled["workers"]
    ]
    scaled = {**modelled, "unit": "seconds", "time": modelled["time"] * rate, "workers": workers}
    return {"Modelled": scaled, "Measured": measured}


def _busy(table: Plain) -> float:
    return sum((1 - row["bubble"]) * table["time"] for row in table["workers"])


def _sentence(schedule: Plain) -> str:
    modelled, measured = schedule["modelled"], schedule["measured"]
    seconds = modelled["unit"] == "seconds"
    when = " in steady state" if modelled["steady"] else ""
    takes = (
        f"and a step takes {_milliseconds(modelled)} "
        if seconds
        else "with passes in proportion to their floating-point operations, and messages that take no time "
    )
    said = f"Schedule {shown(schedule['schedule'])}: modelled, the bubble is {modelled['bubble']:.1%}{when}, {takes}"
    if measured is None:
        missing = "long enough in steady state" if modelled["steady"] else "timed"
        return f"{said.rstrip()}; nothing was measured, because no step with all of its passes was {missing}."
    clock = "on the virtual cluster's clock" if schedule["clock"] == "modelled" else "on the workers' clocks"
    scale = "" if seconds else " The modelled picture is scaled so that all passes together take as long as measured."
    return (
        f"{said.rstrip()}; measured {clock}, in the step of median time, it is {measured['bubble']:.1%}, and a step "
        f"takes {_milliseconds(measured)}.{scale}"
    )


def _milliseconds(table: Plain) -> str:
    return f"{1e3 * table['time'] / table['steps']:.4g} ms"
