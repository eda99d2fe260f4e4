"""A lane a worker, time to the right: what it does, and arrows for who sends what to whom. SVG, alone or in a page."""

from html import escape
from typing import Any

from ..report.page import sha256
from . import svg

WIDTH, ROW, LEFT, TOP, DEEP = 940, 30, 96, 78, 18  # pixels; DEEP: of a bar
KINDS = {"compute": (0, "computes"), "communication": (1, "is blocked by a message or a sum under way")}
PURPOSES = 6  # of messages that are told apart by dashes
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "1 2")
HEAD = (
    '<marker id="head" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
    '<path class="head" d="M0,0 L7,3 L0,6 z"/></marker>'
)
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {script}style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em }}
pre {{ overflow-x: auto; border-left: 3px solid; padding: .4em 1em }} svg {{ max-width: 100%; height: auto }}
.picture {{ overflow-x: auto }} @media (max-width: 600px) {{ .picture svg {{ max-width: none; width: 46em }} }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>{end}
</body>
</html>
"""


def as_svg(title: str, lanes: dict[str, Any], length: float | None = None) -> str:
    """`lanes`: as `lanes.read` gives them. `length`: the microseconds that the width stands for; None: those of
    the lanes.
    """
    rows, begin = lanes["lanes"], lanes["begin"]
    scale = WIDTH / (length or (lanes["end"] - begin) or 1.0)
    purposes = list(dict.fromkeys(each["purpose"] for each in lanes["messages"]))[:PURPOSES]
    bottom = TOP + ROW * len(rows)

    def x(at: float) -> float:
        return LEFT + (at - begin) * scale

    def y(lane: int) -> float:
        return TOP + ROW * lane + DEEP / 2

    parts = [svg.text(10, 22, title, "title"), *svg.legend(10, 36, list(KINDS.values()))]
    parts += [svg.gap(460, 36, 18, 12, "waits"), svg.text(484, 46.5, "waits for another", "small")]
    parts += [_word(10 + 150 * i, 66, purpose, i) for i, purpose in enumerate(purposes)]
    for place, row in enumerate(rows):
        top = TOP + ROW * place
        parts.append(svg.text(10, top + 14, row["name"]))
        for span in row["spans"]:
            took = f"{span['name']}: {_time(span['start'] - begin)} to {_time(span['end'] - begin)}"
            wide = (span["end"] - span["start"]) * scale
            said = f"{row['name']}, {took}"
            if span["kind"] == "waiting":
                parts.append(svg.gap(x(span["start"]), top, wide, DEEP, said))
            else:
                parts.append(svg.bar(x(span["start"]), top, wide, DEEP, KINDS[span["kind"]][0], said))
    for each in lanes["sums"]:
        low, high = min(each["lanes"]), max(each["lanes"])
        said = escape(f"{each['name']} among {len(each['lanes'])}: {', '.join(rows[i]['name'] for i in each['lanes'])}")
        parts.append(
            f'<path class="dark strong sum" d="M{x(each["at"]):.2f},{y(low) - DEEP / 2:.2f} '
            f'V{y(high) + DEEP / 2:.2f}"><title>{said}</title></path>'
        )
    for each in lanes["messages"]:
        place = purposes.index(each["purpose"]) if each["purpose"] in purposes else PURPOSES - 1
        said = escape(f"{rows[each['from']]['name']} to {rows[each['to']]['name']}: {each['purpose']}")
        parts.append(
            f'<path class="dark message" stroke-dasharray="{DASHES[place]}" marker-end="url(#head)" '
            f'd="M{x(each["left"]):.2f},{y(each["from"]):.2f} L{x(each["came"]):.2f},{y(each["to"]):.2f}">'
            f"<title>{said}</title></path>"
        )
    for tick in svg.ticks(length or lanes["end"] - begin, 8):
        parts.append(svg.text(x(begin + tick), bottom + 18, _time(tick), "small", "middle"))
    notes = ["A thick upright line: a sum, or the like, in which these lanes take part."] if lanes["sums"] else []
    notes += ["Of a server what it sends and receives is shown."] if any(map(_serves, rows)) else []
    parts.append(svg.text(10, bottom + 38, " ".join(notes), "small"))
    return svg.document(title, in_words(lanes), LEFT + WIDTH + 40, bottom + 50, parts, HEAD)


def in_words(lanes: dict[str, Any]) -> str:
    """Returns a sentence with the number of messages and sums of each kind."""
    counts: dict[str, int] = {}
    for each in lanes["messages"]:
        counts[each["purpose"]] = counts.get(each["purpose"], 0) + 1
    sums: dict[str, int] = {}
    for each in lanes["sums"]:
        sums[each["name"]] = sums.get(each["name"], 0) + 1
    told = [f"{count} x {purpose}" for purpose, count in counts.items()]
    told += [f"{count} x {name} among several" for name, count in sums.items()]
    shown = f"{len(lanes['lanes'])} lanes, {_time(lanes['end'] - lanes['begin'])}"
    return f"{shown}: {', '.join(told)}." if told else f"{shown}: nothing is sent."


def in_page(drawn: str) -> str:
    """Returns a picture that stays legible on a telephone: there it scrolls, by keyboard, too."""
    return f'<div class="picture" tabindex="0" role="group" aria-label="Picture, scrolls">{drawn}</div>'


def as_html(title: str, body: str, script: str = "") -> str:
    """`body`: HTML of ours. `script`: the only one that the page may run."""
    policy, end = (f"script-src 'sha256-{sha256(script)}'; ", f"\n<script>{script}</script>") if script else ("", "")
    return PAGE.format(title=escape(title), body=svg.with_ids_apart(body), script=policy, end=end)


def _serves(row: dict[str, Any]) -> bool:
    return row["name"].startswith("server")


def _word(left: float, top: float, purpose: str, place: int) -> str:
    shape = f'stroke-dasharray="{DASHES[place]}" d="M{left:.0f},{top - 4:.0f} h26" marker-end="url(#head)"'
    return f'<path class="dark" {shape}/>' + svg.text(left + 34, top, purpose, "small")


def _time(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3g} ms" if microseconds else "0"
