"""A pipeline's schedule in the terminal: workers down, time across."""

import re
from typing import Any

from .output import aligned, in_colours, terminal_width

BUBBLE = "."
WIDE = 120  # characters where lines end nowhere
LEGEND = {"F": "forward", "B": "backward", "I": "gradient of the input", "W": "gradients of the weights"}
COLOURS = {"F": 44, "B": 43, "I": 42, "W": 45}  # of the background, by their numbers in ECMA-48


def title_of(schedule: str, timetable: dict[str, Any]) -> str:
    time = timetable["time"] / timetable["steps"]
    took = f"{1e3 * time:.4g} ms as modelled" if timetable["unit"] == "seconds" else f"{time:.4g} {timetable['unit']}"
    when = " in steady state" if timetable["steady"] else ""
    return f"schedule {schedule}: bubble {timetable['bubble']:.1%}{when}, a step takes {took}"


def drawn(schedule: str, timetable: dict[str, Any]) -> list[str]:
    """`timetable`: as engine's Timetable.as_dict()."""
    rows = timetable["workers"]
    labels = [f"worker {i}" for i in range(len(rows))]
    width = (terminal_width() or WIDE) - max(map(len, labels)) - 2
    kinds = {_kind(each["action"]) for row in rows for each in row["actions"]}
    legend = ", ".join([f"{kind} {LEGEND[kind]}" for kind in LEGEND if kind in kinds] + [f"{BUBBLE} bubble"])
    without = "" if timetable["unit"] == "seconds" else ", and messages take none"
    return [
        title_of(schedule, timetable),
        f"{legend}; one replica's passes in proportion to time{without}",
        *(
            f"{label:<{max(map(len, labels))}}  {_bar(row['actions'], timetable, max(width, 10))}"
            for label, row in zip(labels, rows, strict=True)
        ),
        *_holds(timetable),
    ]


def _bar(actions: list[dict[str, Any]], timetable: dict[str, Any], width: int) -> str:
    several = len(timetable["stages"]) > len(timetable["workers"])
    scale, at, parts = width / timetable["time"], 0, list[str]()
    for each in actions:
        start, end = round(each["start"] * scale), round(each["end"] * scale)
        text = each["action"] if several else re.sub(r"^\d+", "", each["action"])
        kind = _kind(each["action"])
        parts.append(BUBBLE * (start - at))
        # the letter alone where there is no room for the number; without colours, bars say where one ends
        text = text if len(text) <= end - start else kind
        parts.append(_coloured(f"{text:-<{end - start}}"[: end - start], kind))
        at = end
    return "".join([*parts, BUBBLE * (width - at)])


def _coloured(text: str, kind: str) -> str:
    return f"\x1b[30;{COLOURS[kind]}m{text.replace('-', ' ')}\x1b[0m" if in_colours() and text else text


def _holds(timetable: dict[str, Any]) -> list[str]:
    several = any(each["versions"] > 1 for each in timetable["stages"])
    heads = ["stage", "worker", "micro-batches in flight", "bubble of the worker"]
    table = [heads + ["versions of the weights"] * several]
    for each in timetable["stages"]:
        share = timetable["workers"][each["worker"]]["bubble"]
        row = [str(each["stage"]), str(each["worker"]), str(each["in_flight"]), f"{share:.1%}"]
        table.append(row + [str(each["versions"])] * several)
    return aligned(table, numbers_from=0)


def _kind(action: str) -> str:
    return re.sub(r"\d+", "", action)
