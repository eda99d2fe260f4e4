"""A pipeline's schedule as a Gantt chart in SVG: workers down, time across, with the versions of weights that live.

Every action has its letter and its pattern, so that it can be read without colours.
"""

import re
from typing import Any

from . import svg

WIDTH, ROW, LEFT, TOP = 960, 34, 150, 44  # pixels
LETTER = 9  # pixels that a character takes
COLOURS = {"F": 0, "B": 1, "I": 2, "W": 5}
MEANINGS = {"F": "forward", "B": "backward", "I": "gradient of the input", "W": "gradients of the weights"}


def as_svg(title: str, timetable: dict[str, Any], until: float | None = None) -> str:
    """`timetable`: {"time", "bubble", "unit", "stages", "workers": [{"bubble", "actions"}]}.

    "actions": [{"action": as `2F0`, "start", "end"}]; "stages": [{"stage", "worker", "in_flight", "versions"}].
    `until`: where the time axis ends; None for where the schedule does.
    """
    scale = WIDTH / (until or timetable["time"])
    workers, stages = timetable["workers"], timetable["stages"]
    kinds = [kind for kind in COLOURS if any(_kind(each) == kind for row in workers for each in row["actions"])]
    end = TOP + len(workers) * ROW
    height = end + 50 + 16 * len(stages)
    notes = [
        f"stage {each['stage']} on worker {each['worker']}: at most {each['in_flight']} micro-batches in flight, "
        f"{_versions(each['versions'])}"
        for each in stages
    ]
    parts = [
        svg.text(10, 24, title, "title"),
        *(_row(i, row, timetable, scale) for i, row in enumerate(workers)),
        *svg.legend(10, end + 14, [(COLOURS[kind], f"{kind}: {MEANINGS[kind]}") for kind in kinds]),
        *(svg.text(10, end + 50 + 16 * i, text, "small") for i, text in enumerate(notes)),
    ]
    return svg.document(title, in_words(timetable), LEFT + WIDTH + 20, height, parts)


def in_words(timetable: dict[str, Any]) -> str:
    """The bubble, of all and of each worker, and how many versions of weights live."""
    shares = ", ".join(f"worker {i} {row['bubble']:.1%}" for i, row in enumerate(timetable["workers"][:16]))
    versions = max(each["versions"] for each in timetable["stages"])
    return f"The bubble is {timetable['bubble']:.1%} ({shares}); stages have {_versions(versions)} at most."


def _versions(count: int) -> str:
    return f"{count} versions of its weights" if count > 1 else "1 version of its weights"


def _row(i: int, row: dict[str, Any], timetable: dict[str, Any], scale: float) -> str:
    top, whole = TOP + i * ROW, timetable["time"] * scale  # pixels
    several = len(timetable["stages"]) > len(timetable["workers"])
    parts = [
        svg.text(10, top + 20, f"worker {i}"),
        svg.text(LEFT - 8, top + 20, f"{row['bubble']:.0%} bubble", "small", "end"),
        svg.gap(LEFT, top, whole, ROW - 4, f"bubble: {row['bubble']:.1%} of worker {i}'s time"),
    ]
    for each in row["actions"]:
        left, wide = LEFT + each["start"] * scale, (each["end"] - each["start"]) * scale
        if wide <= 0:
            continue
        said = f"{each['action']}: {each['start']:.6g} to {each['end']:.6g} {timetable['unit']}"
        parts.append(svg.bar(left, top, wide, ROW - 4, COLOURS[_kind(each)], said))
        label = each["action"] if several else re.sub(r"^\d+", "", each["action"])
        if wide >= LETTER * len(label) + 6:
            room = LETTER * len(label) + 2
            parts.append(f'<rect class="page" x="{left + 2:.2f}" y="{top + 8}" width="{room}" height="16" rx="3"/>')
            parts.append(svg.text(left + 4, top + 20, label, "letter"))
    return "\n".join(parts)


def _kind(each: dict[str, Any]) -> str:
    return re.sub(r"\d+", "", each["action"])
