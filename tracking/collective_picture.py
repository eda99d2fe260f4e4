"""A collective as a picture with steps to click: SVG, alone or in a page of HTML. Neither runs a script
or loads a file.

A row is a worker and a cell one of its chunks, the darker the more workers' values are in it; an arrow is a message.
The step that is shown is the one that the address names (`#step-3`), which CSS's `:target` finds; the first without.
"""

from html import escape
from typing import Any

CELL, ROW, LEFT, TOP, GAP = 46, 34, 130, 84, 26  # pixels; GAP: between chunks and arrows
STYLE = """
.step { display: none }
.step:target { display: inline }
svg:not(:has(.step:target)) .first { display: inline }
text { font: 13px sans-serif; fill: #222 }
.title { font-weight: bold }
.small { font-size: 11px; fill: #555 }
.cell { stroke: #888; fill: #2b6cb0 }
.changed { stroke: #c05621; stroke-width: 3 }
.arrow { fill: none; stroke: #c05621; stroke-width: 1.6; marker-end: url(#head) }
.copies { stroke: #2f855a; stroke-dasharray: 5 3 }
a text { fill: #2b6cb0; text-decoration: underline }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 2em }}</style>
</head>
<body>
<h1>{title}</h1>
{chosen}{svg}
</body>
</html>
"""


def as_html(name: str, recording: dict[str, Any]) -> str:
    chosen = "".join(f"<p>{escape(why)}</p>\n" for why in recording.get("chosen", []))
    return PAGE.format(title=escape(_title(name, recording)), chosen=chosen, svg=as_svg(name, recording))


def as_svg(name: str, recording: dict[str, Any]) -> str:
    """`recording`: {"hosts": of each worker, "steps": [{"name", "messages", "after"}], "chosen": why, in sentences}.

    "messages": [{"from", "to", "chunks", "adds"}]; "after": [workers][chunks] of lists of workers.
    """
    workers, steps = len(recording["hosts"]), recording["steps"]
    width = LEFT + workers * CELL + GAP + _reach(workers) + 20
    height = TOP + workers * ROW + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(_title(name, recording))}</title>",
        *(f"<desc>{escape(why)}</desc>" for why in recording.get("chosen", [])),
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#444"/></marker></defs>',
        *(_step(i, step, recording) for i, step in enumerate(steps)),
        _text(LEFT, height - 30, "a line: adds to what is there; dashes: takes its place", "small"),
        _text(LEFT, height - 14, "a number: how many workers' values are in the chunk", "small"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(name: str, recording: dict[str, Any]) -> str:
    return f"{name}: a sum among {len(recording['hosts'])} workers"


def _step(i: int, step: dict[str, Any], recording: dict[str, Any]) -> str:
    steps = len(recording["steps"])
    named = f": {step['name']}" if step["name"] else ""
    first = " first" if i == 0 else ""
    changed = {(message["to"], chunk) for message in step["messages"] for chunk in message["chunks"]}
    links = [("previous", max(i, 1)), ("next", min(i + 2, steps))]
    parts = [
        f'<g class="step{first}" id="step-{i + 1}">',
        _text(10, 24, f"Step {i + 1} of {steps}{named}", "title"),
        *(f'<a href="#step-{to}">{_text(10 + 80 * place, 48, word)}</a>' for place, (word, to) in enumerate(links)),
        _text(10, TOP - 8, "chunk", "small"),
        *(
            _text(LEFT + chunk * CELL + CELL // 2 - 6, TOP - 8, str(chunk), "small")
            for chunk in range(len(step["after"]))
        ),
        *(_row(rank, row, recording, changed) for rank, row in enumerate(step["after"])),
        *(_arrow(message, len(recording["hosts"])) for message in step["messages"]),
        "</g>",
    ]
    return "\n".join(parts)


def _row(rank: int, row: list[list[int]], recording: dict[str, Any], changed: set[tuple[int, int]]) -> str:
    hosts, top = recording["hosts"], TOP + rank * ROW
    host = f" (host {hosts[rank]})" if 1 < len({*hosts}) < len(hosts) else ""
    parts = [_text(10, top + 21, f"worker {rank}{host}")]
    for chunk, values in enumerate(row):
        left, mark = LEFT + chunk * CELL, " changed" if (rank, chunk) in changed else ""
        whose = ", ".join(map(str, values))
        parts.append(
            f'<rect class="cell{mark}" x="{left}" y="{top}" width="{CELL - 4}" height="{ROW - 4}" '
            f'fill-opacity="{len(values) / len(hosts) * 0.8:.2f}"><title>of workers {escape(whose)}</title></rect>'
        )
        parts.append(_text(left + CELL // 2 - 6, top + 20, str(len(values))))
    return "\n".join(parts)


def _arrow(message: dict[str, Any], workers: int) -> str:
    """From row to row, the further the wider."""
    source, destination = message["from"], message["to"]
    left = LEFT + workers * CELL + GAP
    start, end = (TOP + rank * ROW + ROW // 2 - 2 for rank in (source, destination))
    bulge = left + _reach(abs(source - destination))
    kind = "arrow" if message["adds"] else "arrow copies"
    chunks = ", ".join(map(str, message["chunks"]))
    what = escape(f"{source} to {destination}: chunks {chunks}, {'added' if message['adds'] else 'copied'}")
    return (
        f'<path class="{kind}" d="M{left},{start} C{bulge},{start} {bulge},{end} {left},{end}">'
        f"<title>{what}</title></path>"
    )


def _reach(rows: int) -> int:
    return 30 + 14 * rows


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{of}>{escape(text)}</text>'
