"""A sum of a collective as a picture with steps to click. It runs no script and loads no file.

A row is a worker and a cell one of its chunks, the darker the more workers' values are in it; an arrow is a message.
The step that is shown is the one that the address names (`#step-3`), which CSS's `:target` finds; the first without.
"""

from html import escape
from typing import Any

from . import svg
from .lanes import HEAD

CELL, ROW, LEFT, TOP, GAP = 46, 34, 130, 84, 26  # pixels; GAP: between chunks and arrows
STEPS = (
    "<style>.step { display: none } .step:target { display: inline } "
    "svg:not(:has(.step:target)) .first { display: inline } a text { text-decoration: underline }</style>"
)


def as_svg(recording: dict[str, Any]) -> str:
    """`recording`: {"collective": name, "hosts": of each worker, "chosen": why, in sentences, "steps": of each

    {"name", "messages": [{"from", "to", "chunks", "adds"}], "after": [workers][chunks] of lists of workers}}.
    """
    workers, steps = len(recording["hosts"]), recording["steps"]
    width = max(LEFT + workers * CELL + GAP + _reach(workers) + 20, 460)
    height = TOP + workers * ROW + 70
    parts = [
        *(_step(i, step, recording) for i, step in enumerate(steps)),
        svg.text(10, height - 30, "a line: adds to what is there; dashes: takes its place", "small"),
        svg.text(10, height - 14, "a number: how many workers' values are in the chunk", "small"),
    ]
    title = f"{recording['collective']}: a sum among {workers} workers"
    return svg.document(title, " ".join(recording.get("chosen", [])), width, height, parts, HEAD + STEPS)


def _step(i: int, step: dict[str, Any], recording: dict[str, Any]) -> str:
    steps = len(recording["steps"])
    named = f": {step['name']}" if step["name"] else ""
    changed = {(message["to"], chunk) for message in step["messages"] for chunk in message["chunks"]}
    links = [("previous", max(i, 1)), ("next", min(i + 2, steps))]
    parts = [
        f'<g class="step{"" if i else " first"}" id="step-{i + 1}">',
        svg.text(10, 24, f"Step {i + 1} of {steps}{named}", "title"),
        *(f'<a href="#step-{to}">{svg.text(10 + 80 * place, 48, word)}</a>' for place, (word, to) in enumerate(links)),
        svg.text(10, TOP - 8, "chunk", "small"),
        *(svg.text(LEFT + chunk * CELL + 17, TOP - 8, str(chunk), "small") for chunk in range(len(step["after"]))),
        *(_row(rank, row, recording, changed) for rank, row in enumerate(step["after"])),
        *(_arrow(message, len(recording["hosts"])) for message in step["messages"]),
        "</g>",
    ]
    return "\n".join(parts)


def _row(rank: int, row: list[list[int]], recording: dict[str, Any], changed: set[tuple[int, int]]) -> str:
    hosts, top = recording["hosts"], TOP + rank * ROW
    host = f" (host {hosts[rank]})" if 1 < len({*hosts}) < len(hosts) else ""
    parts = [svg.text(10, top + 21, f"worker {rank}{host}")]
    for chunk, values in enumerate(row):
        left, mark = LEFT + chunk * CELL, " dark strong" if (rank, chunk) in changed else ""
        whose = ", ".join(map(str, values))
        parts.append(
            f'<rect class="c0{mark}" x="{left}" y="{top}" width="{CELL - 4}" height="{ROW - 4}" '
            f'fill-opacity="{len(values) / len(hosts) * 0.6:.2f}"><title>of workers {escape(whose)}</title></rect>'
        )
        parts.append(svg.text(left + 17, top + 20, str(len(values))))
    return "\n".join(parts)


def _arrow(message: dict[str, Any], workers: int) -> str:
    """Draws an arrow from row to row. The further it goes, the wider it bulges."""
    left = LEFT + workers * CELL + GAP
    start, end = (TOP + message[each] * ROW + ROW // 2 - 2 for each in ("from", "to"))
    bulge = left + _reach(abs(message["from"] - message["to"]))
    chunks = ", ".join(map(str, message["chunks"]))
    done = "added" if message["adds"] else "copied"
    what = escape(f"{message['from']} to {message['to']}: chunks {chunks}, {done}")
    dashes = "" if message["adds"] else ' stroke-dasharray="5 3"'
    return (
        f'<path class="dark" marker-end="url(#head)"{dashes} '
        f'd="M{left},{start} C{bulge},{start} {bulge},{end} {left},{end}"><title>{what}</title></path>'
    )


def _reach(rows: int) -> int:
    return 30 + 14 * rows
