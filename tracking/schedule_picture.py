"""A pipeline's schedule as a Gantt chart in SVG: workers down, time across. It runs no script and loads no file.

Colours are the palette's, and every action has its letter, so that it can be read without them.
"""

import re
from html import escape
from typing import Any

from .figures.palette import LIGHT

WIDTH, ROW, LEFT, TOP = 960, 34, 110, 44  # pixels
LETTER = 9  # pixels that a character takes
COLOURS = {"F": LIGHT[0], "B": LIGHT[1], "I": LIGHT[2], "W": LIGHT[5]}
MEANINGS = {"F": "forward", "B": "backward", "I": "gradient of the input", "W": "gradients of the weights"}
STYLE = """
text { font: 13px sans-serif; fill: #222 }
.title { font-weight: bold }
.small { font-size: 11px; fill: #555 }
.bubble { fill: #eee }
.letter { font-size: 12px; fill: #fff }
rect { stroke: #fff; stroke-width: 1 }
"""


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
        f"stage {each['stage']} on worker {each['worker']}: at most {each['in_flight']} micro-batches in flight"
        + (f", {each['versions']} versions of its weights" if each["versions"] > 1 else "")
        for each in stages
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        f'width="{LEFT + WIDTH + 20}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        _text(10, 24, title, "title"),
        *(_row(i, row, timetable, scale) for i, row in enumerate(workers)),
        *(_meaning(place, kind, end + 14) for place, kind in enumerate(kinds)),
        *(_text(10, end + 50 + 16 * i, text, "small") for i, text in enumerate(notes)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _row(i: int, row: dict[str, Any], timetable: dict[str, Any], scale: float) -> str:
    top, whole = TOP + i * ROW, f"{timetable['time'] * scale:.6g}"  # pixels
    several = len(timetable["stages"]) > len(timetable["workers"])
    parts = [
        _text(10, top + 20, f"worker {i}"),
        f'<rect class="bubble" x="{LEFT}" y="{top}" width="{whole}" height="{ROW - 4}">'
        f"<title>bubble: {row['bubble']:.1%} of worker {i}'s time</title></rect>",
    ]
    for each in row["actions"]:
        left, wide = LEFT + each["start"] * scale, (each["end"] - each["start"]) * scale
        if wide <= 0:
            continue
        parts.append(
            f'<rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{ROW - 4}" fill="{COLOURS[_kind(each)]}">'
            f"<title>{escape(each['action'])}: {each['start']:.6g} to {each['end']:.6g} {timetable['unit']}</title>"
            "</rect>"
        )
        label = each["action"] if several else re.sub(r"^\d+", "", each["action"])
        if wide >= LETTER * len(label):
            parts.append(_text(left + 3, top + 20, label, "letter"))
    return "\n".join(parts)


def _meaning(place: int, kind: str, top: int) -> str:
    left = LEFT + place * 210
    return (
        f'<rect x="{left}" y="{top}" width="14" height="14" fill="{COLOURS[kind]}"/>'
        f"{_text(left + 20, top + 12, f'{kind}: {MEANINGS[kind]}', 'small')}"
    )


def _kind(each: dict[str, Any]) -> str:
    return re.sub(r"\d+", "", each["action"])


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.2f}" y="{y}"{of}>{escape(text)}</text>'
