"""The animated picture of a small run, from its document (tracking/player.py): a strip of key moments, and a player.

A moment is one or two pictures side by side. The first has a row a worker: what it does, what it holds, and messages as
arcs from row to row with a dot where each is. The second has what is drawn in a plane, and curves over time.

Without a script the strip is all there is. player.js takes the first moment, adds buttons, and moves what is in it:
each element that changes has a `data-` attribute, and `layout` says where things are.
"""

from html import escape
from importlib import resources
from itertools import pairwise
from math import ceil
from typing import Any

from ..figures.palette import STEP_COLOURS
from ..player import value_at
from ..report.page import data_block
from . import svg

WIDTH, ROW, TOP = 380, 18, 40  # pixels: of a picture, of a row, above the rows
HELD_END, ARCS = 290, 296  # where a row's values end, and where arcs begin
LETTER = 6.2  # pixels of a character of a name
REACH = 76  # of the longest arc
NUMBER, WIDE, DIGITS = 62, 100, 40  # pixels of a number with its bar, beside cells and without; of its digits
PLANE, CURVE, EDGE = 210, 64, 16  # heights, and the edge around what is drawn in a plane
MOMENTS, MOST_STEPS = 6, 12  # of a strip: of a run, and at most of a sum
MARKS = ("#", "~", ".")  # of KINDS, as in the terminal
CLASSES = (f"c{STEP_COLOURS['compute']}", f"c{STEP_COLOURS['communication']}", "empty")
Plain = dict[str, Any]
STYLE = """<style>
.player figure { margin: 0 0 1em; max-width: 36em } .player svg { width: 100%; height: auto; display: block }
.player .strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(17em, 1fr)); gap: 1em 1.5em }
.player figcaption, .player output { display: block; min-height: 3em; font-size: 90% }
.player .stage { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0 1em; max-width: none }
.player .stage svg { flex: 1 1 20em; max-width: 36em; min-width: min(100%, 20em) }
.player .buttons { display: flex; flex-wrap: wrap; align-items: center; gap: .5em }
.player button, .player select { font: inherit; min-width: 4em; min-height: 2.2em }
.player button, .player select { border: 1px solid; border-radius: 4px }
.player input { flex: 1 1 12em; min-width: 8em }
@media print { .player .buttons, .player output, .player .stage, .player summary { display: none } }
</style>"""


def script() -> str:
    return resources.files(__package__ or "").joinpath("player.js").read_text(encoding="utf-8")


def as_html(document: Plain) -> str:
    """Returns the strip and the data of the player. The page has to have `STYLE` and `script()` once."""
    parts = [f'<div class="player" aria-label="{escape(document["title"], quote=True)}">', '<div class="strip">']
    for at in key_moments(document):
        pictures = "\n".join(_documents(document, at))
        parts.append(f"<figure>\n{pictures}\n<figcaption>{escape(_said(document, at))}</figcaption>\n</figure>")
    data = data_block({**document, "layout": layout(document), "strip": key_moments(document)})
    parts += ["</div>", f'<script type="application/json">{data}</script>', "</div>"]
    if document["about"]:
        parts.append(f"<p>{escape(document['about'])}</p>")
    return "\n".join(parts)


def as_svg(document: Plain, columns: int = 2) -> str:
    """Returns the strip as one picture."""
    moments = key_moments(document)
    pictures = [(_rows(document, at), _panels(document, at)) for at in moments]
    height = _height(document) + _panel_height(document) + 44
    parts: list[str] = []
    for place, (rows, panels) in enumerate(pictures):
        left, top = place % columns * (WIDTH + 20), place // columns * height
        below = f'<g transform="translate(0 {_height(document):g})">' + "\n".join(panels) + "</g>"
        said = [
            svg.text(10, height - 32 + 14 * line, words, "small")
            for line, words in enumerate(_lines(_said(document, moments[place])))
        ]
        parts.append(f'<g transform="translate({left} {top:g})">' + "\n".join([*rows, below, *said]) + "</g>")
    wide, high = columns * (WIDTH + 20), height * ceil(len(moments) / columns)
    title = document["title"]
    return svg.document(title, document["about"] or _said(document, 0.0), wide, high + 30, [
        svg.text(10, high + 16, document["about"], "small"), *parts,
    ])  # fmt: skip


def key_moments(document: Plain) -> list[float]:
    """Returns so many moments, one of each part of the time: with the most messages on their way, else its last one.

    A document without times has its first and its last moment, and of many steps evenly chosen ones.
    """
    moments = [at for at, _ in document["moments"]]
    if not document["timed"]:
        count = min(len(moments), MOST_STEPS)
        return [moments[i * (len(moments) - 1) // max(count - 1, 1)] for i in range(count)]
    end = document["end"]
    middles = sorted((left + came) / 2 for _, _, left, came, *_ in document["messages"])
    found = [0.0]
    for start, over in pairwise(end * i / (MOMENTS - 1) for i in range(MOMENTS)):
        within = [at for at in middles if start < at <= over]
        last = max((at for at in moments if start < at <= over), default=over)
        found.append(max(within, key=lambda at: len(_under_way(document, at)), default=last))
    return found


def _said(document: Plain, at: float) -> str:
    text = next(text for when, text in reversed(document["moments"]) if when <= at)
    return f"{at / 1e3:.3g} ms: {text}" if document["timed"] else text


def _lines(text: str, width: int = 62) -> list[str]:
    """Returns the text in two lines."""
    if len(text) <= width:
        return [text]
    place = text.rfind(" ", 0, width)
    rest = text[place + 1 :]
    return [text[:place], rest if len(rest) <= width else rest[: width - 3] + "..."]


# -- where things are


def layout(document: Plain) -> Plain:
    """Returns the numbers by which player.js moves things, and what it needs to draw arcs."""
    count = len(document["lanes"])
    return {
        "row": ROW,
        "top": TOP,
        "arcs": ARCS,
        "reach": REACH / max(count - 1, 1),
        "marks": MARKS,
        "classes": CLASSES,
        "plane": [WIDTH / 2, (PLANE + EDGE) / 2, _zoom(document)],
        "rows": _scale(document),
        "curve": [EDGE, WIDTH - 2 * EDGE],
        "numbers": [_most(track) for track in document["held"]],
        "bar": _wide(document) - DIGITS,
    }


def _scale(document: Plain) -> list[float]:
    """Returns [x0, y0, k]: a row's place (x, y) is drawn at (x0 + k x, y0 - k y) of its box."""
    samples = [each for track in document["held"] if track["kind"] == "rows" for each in track["samples"]]
    places = [(x, y) for _, _, rows, _ in samples for _, x, y, *_ in rows] + [made for *_, made in samples]
    if not places:
        return [0.0, 0.0, 1.0]
    (left, right), (low, high) = ((min(each), max(each)) for each in zip(*places, strict=True))
    k = _fit(right - left, high - low)
    return [round(WIDTH / 2 - k * (left + right) / 2, 3), round((PLANE + EDGE + k * (low + high)) / 2, 3), k]


def _fit(wide: float, high: float) -> float:
    """Returns the pixels of a unit in a box that has to hold so many of them."""
    k = min((WIDTH - 4 * EDGE) / (wide or 1e-12), (PLANE - 3 * EDGE) / (high or 1e-12), 1e9)
    return float(f"{k:.6g}")


def _zoom(document: Plain) -> float:
    """Returns the pixels of a unit in the plane of weights, in whose middle the workers' mean is at all times."""
    samples = sorted(
        (at, f"{place}:{lane if track['name'] == 'weights' else -1}", lane, x, y)
        for place, track in enumerate(document["held"])
        if track["kind"] == "point"
        for lane, at, x, y in track["samples"]
    )
    spots: dict[str, tuple[float, float]] = {}
    wide = high = 0.0
    for number, (at, key, _, x, y) in enumerate(samples):
        spots[key] = x, y
        if number + 1 < len(samples) and samples[number + 1][0] == at:
            continue
        mx, my = _middle(document, spots)
        wide = max(wide, *(2 * abs(x - mx) for x, _ in spots.values()))
        high = max(high, *(2 * abs(y - my) for _, y in spots.values()))
    return _fit(wide, high)


def _middle(document: Plain, spots: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Returns the mean of the workers' places, of `spots` by track and lane; of all where there are none."""
    kinds = {key: document["lanes"][int(key.split(":")[1])]["kind"] for key in spots if not key.endswith(":-1")}
    own = [spots[key] for key, kind in kinds.items() if kind == "worker"] or [*spots.values()]
    return sum(x for x, _ in own) / len(own), sum(y for _, y in own) / len(own)


def _wide(document: Plain) -> float:
    """Returns the pixels of a number with its bar."""
    kinds = {kind: {lane for track in document["held"] if track["kind"] == kind for lane, *_ in track["samples"]}
             for kind in ("number", "cells")}  # fmt: skip
    if kinds["number"] & kinds["cells"]:
        return NUMBER
    return min(
        (HELD_END - _left(document)) / max(sum(track["kind"] == "number" for track in document["held"]), 1), WIDE
    )


def _most(track: Plain) -> float:
    return max((abs(each[2]) for each in track["samples"]), default=0.0) or 1.0 if track["kind"] == "number" else 1.0


def _left(document: Plain) -> float:
    """Returns where a row's values begin."""
    return 8 + LETTER * max(len(lane["name"]) for lane in document["lanes"]) + (20 if document["spans"] else 0)


def _height(document: Plain) -> float:
    return TOP + ROW * len(document["lanes"]) + 10


def _planes(document: Plain) -> list[str]:
    """Returns the kinds that have a plane."""
    return [kind for kind in ("point", "rows") if any(track["kind"] == kind for track in document["held"])]


def _panel_height(document: Plain) -> float:
    return PLANE * len(_planes(document)) + CURVE * len(document["curves"])


# -- a moment


def _documents(document: Plain, at: float) -> list[str]:
    title, said = document["title"], _said(document, at)
    found = [svg.document(title, said, WIDTH, _height(document), _rows(document, at), keep=CLASSES)]
    if high := _panel_height(document):
        found.append(svg.document(title, said, WIDTH, high, _panels(document, at), keep=CLASSES))
    return found


def _rows(document: Plain, at: float) -> list[str]:
    names = [track["name"] for track in document["held"] if track["kind"] in ("number", "cells")]
    parts = [
        svg.text(4, 14, "# computes  ~ communicates  . waits" if document["spans"] else "", "small"),
        svg.text(4, 30, f"A row shows: {', '.join(names)}." if names else "", "small"),
    ]
    for lane, row in enumerate(document["lanes"]):
        y = TOP + ROW * lane
        parts.append(svg.text(4, y + 13, row["name"], "small"))
        parts += _values(document, lane, at, y)
        if not document["spans"]:
            continue
        kind, state = _state(document, lane, at), _left(document) - 20
        parts.append(
            f'<rect data-state="{lane}" class="{"void" if kind is None else CLASSES[kind]}" x="{state:g}" y="{y + 2}" '
            f'width="14" height="14" rx="3"/>'
        )
        mark = "" if kind is None else MARKS[kind]
        parts.append(f'<text data-mark="{lane}" x="{state + 7:g}" y="{y + 13}" text-anchor="middle">{mark}</text>')
    arcs = [_arc(each, at, document) for each in _under_way(document, at)]
    return [*parts, f'<g data-arcs="" fill="none">{"".join(arcs)}</g>']


def _values(document: Plain, lane: int, at: float, y: float) -> list[str]:
    """Draws the numbers and cells of a lane, side by side."""
    own = [
        (place, track, [each for each in track["samples"] if each[0] == lane])
        for place, track in enumerate(document["held"])
        if track["kind"] in ("number", "cells")
    ]
    own = [found for found in own if found[2]]
    numbers = sum(track["kind"] == "number" for _, track, _ in own)
    each = _wide(document)
    room, bar = (HELD_END - _left(document) - each * numbers) / max(len(own) - numbers, 1), each - DIGITS
    parts, left = list[str](), _left(document)
    for place, track, samples in own:
        sample = _last(samples, at)
        if track["kind"] == "number":
            value = 0 if sample is None else sample[2]
            wide = bar * abs(value) / _most(track)
            parts.append(
                f'<rect class="empty" x="{left:g}" y="{y + 5}" width="{bar:g}" height="8"/>'
                f'<rect data-bar="{place}:{lane}" class="c2" x="{left:g}" y="{y + 5}" width="{wide:.2f}" height="8"/>'
                f'<text data-number="{place}:{lane}" class="small" x="{left + bar + 4:g}" y="{y + 13}">'
                f"{value:.3g}</text>"
            )
            if "within" in track:
                x = left + bar * _furthest(document, track, at) / _most(track)
                parts.append(
                    f'<line data-bound="{place}:{lane}:{left:g}" class="dark strong" x1="{x:.2f}" x2="{x:.2f}" '
                    f'y1="{y + 3}" y2="{y + 15}"/>'
                )
            left += each
        else:
            blank = [lane, at, [""] * len(samples[0][2]), [0.0] * len(samples[0][2])]  # until it tells what it holds
            parts += _cells(place, lane, sample or blank, left, y, room, _letters(samples))
            left += room
    return parts


def _furthest(document: Plain, track: Plain, at: float) -> float:
    """Returns the most that a lane may go on at: the last lane's number, and the bound more; what is drawn at most."""
    lanes = {lane for lane, *_ in track["samples"]}
    now = (_last([each for each in track["samples"] if each[0] == lane], at) for lane in lanes)
    return min(min(0 if each is None else each[2] for each in now) + track["within"], _most(track))


def _letters(samples: list[list[Any]]) -> int:
    """Returns the characters of the longest text in the cells of these samples."""
    return max(len(text) for _, _, texts, _ in samples for text in texts)


def _cells(place: int, lane: int, sample: list[Any], left: float, y: float, room: float, letters: int) -> list[str]:
    _, _, texts, shares = sample
    wide = room / len(texts)
    parts: list[str] = []
    for number, (text, share) in enumerate(zip(texts, shares, strict=True)):
        x = left + wide * number
        box = f'x="{x:.2f}" y="{y + 2}" width="{max(wide - 1, 1):.2f}" height="14"'
        parts.append(f'<rect class="empty" {box}/><rect data-cell="{place}:{lane}:{number}" class="c0" {box} '
                     f'fill-opacity="{0.6 * share:.2f}"/>')  # fmt: skip
        if wide >= 5.5 * letters + 1:
            parts.append(
                f'<text data-text="{place}:{lane}:{number}" class="small" x="{x + wide / 2:.2f}" y="{y + 13}" '
                f'text-anchor="middle">{escape(text)}</text>'
            )
    return parts


def _under_way(document: Plain, at: float) -> list[list[Any]]:
    return [each for each in document["messages"] if each[2] < at <= each[3]]


def _arc(message: list[Any], at: float, document: Plain) -> str:
    """Draws a message: an arc from row to row, and a dot where it is. player.js does the same."""
    source, to, left, came = message[:4]
    reach = 8 + REACH / max(len(document["lanes"]) - 1, 1) * abs(source - to) * 0.85
    start, end = (TOP + ROW * lane + ROW / 2 for lane in (source, to))
    s = (at - left) / (came - left)
    x = ARCS + reach * 3 * s * (1 - s)
    y = start * (1 - s) ** 2 * (1 + 2 * s) + end * s**2 * (3 - 2 * s)
    bend = ARCS + reach
    return (
        f'<path class="dark" stroke-opacity="0.45" d="M{ARCS},{start:.2f} C{bend:.2f},{start:.2f} {bend:.2f},{end:.2f} '
        f'{ARCS},{end:.2f}"/><circle class="head" cx="{x:.2f}" cy="{y:.2f}" r="3"/>'
    )


def _panels(document: Plain, at: float) -> list[str]:
    parts, top = list[str](), 0.0
    for kind in _planes(document):
        drawn = _points(document, at) if kind == "point" else _joined(document, at)
        parts.append(f'<g transform="translate(0 {top:g})">' + "\n".join(drawn) + "</g>")
        top += PLANE
    for place, curve in enumerate(document["curves"]):
        parts.append(f'<g transform="translate(0 {top:g})">' + "\n".join(_curve(document, place, curve, at)) + "</g>")
        top += CURVE
    return parts


def _points(document: Plain, at: float) -> list[str]:
    tracks = [(place, track) for place, track in enumerate(document["held"]) if track["kind"] == "point"]
    places: dict[str, tuple[float, float]] = {}
    for place, track in tracks:
        lanes = sorted({lane for lane, *_ in track["samples"]}) if track["name"] == "weights" else [-1]
        for lane in lanes:
            samples = [each for each in track["samples"] if lane in (each[0], -1)]
            _, _, x, y = _last(samples, at) or samples[0]
            places[f"{place}:{lane}"] = x, y
    (mx, my), k = _middle(document, places), _zoom(document)
    spots = {key: (WIDTH / 2 + k * (x - mx), (PLANE + EDGE) / 2 - k * (y - my)) for key, (x, y) in places.items()}
    marks = [_spot(document, key, spot) for key, spot in spots.items()]
    ends = [f"{place}:-1" for place, track in tracks if track.get("ties")]
    ties = [_tie(key, end, spots) for end in ends for key in spots if not key.endswith(":-1")]
    head = svg.text(4, 14, "weights, in the plane in which they differ most, about their mean", "small")
    return [head, *ties, *marks]


def _spot(document: Plain, key: str, spot: tuple[float, float]) -> str:
    place, lane = map(int, key.split(":"))
    track = document["held"][place]
    is_worker = lane >= 0 and document["lanes"][lane]["kind"] == "worker"
    word = document["lanes"][lane]["name"].split()[1] if is_worker else track["name"] if lane < 0 else "server"
    shape = (
        '<circle class="c0" r="7" fill-opacity="0.55"/>'
        if is_worker
        else '<path class="c1" d="M0,-7 L7,0 L0,7 L-7,0 z"/>'
    )
    said = svg.text(0, 4, word, "small", "middle") if is_worker else svg.text(9, 4, word, "small")
    place = f'transform="translate({spot[0]:.2f} {spot[1]:.2f})"'
    return f'<g data-point="{key}" data-worker="{int(is_worker)}" {place}>{shape}{said}</g>'


def _tie(one: str, other: str, spots: dict[str, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = spots[one], spots[other]
    return (
        f'<line data-tie="{one} {other}" class="dark" stroke-opacity="0.5" stroke-dasharray="2 2" x1="{x1:.2f}" '
        f'y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'
    )


def _joined(document: Plain, at: float) -> list[str]:
    """Draws the rows that a rule was given, and its result. player.js does the same."""
    track = next(track for track in document["held"] if track["kind"] == "rows")
    sample = _last(track["samples"], at)
    words = "ring: equals the result (+)"
    if any(apart for *_, rows, _ in track["samples"] for *_, apart in rows):
        words += "; orange: sent by a Byzantine worker"
    lane = document["lanes"][track["samples"][0][0]]["name"]
    head = svg.text(4, 14, f"{track['name']}, on {lane}", "small") + svg.text(4, 28, words, "small")
    x0, y0, k = _scale(document)
    marks: list[str] = []
    if sample is not None:
        _, _, rows, (x, y) = sample
        for worker, a, b, picked, apart in rows:
            ring = '<circle class="dark strong" r="10"/>' if picked else ""
            colour = 1 if apart else 0
            marks.append(
                f'<g transform="translate({x0 + k * a:.2f} {y0 - k * b:.2f})"><circle class="c{colour}" '
                f'r="7" fill-opacity="0.55"/>{ring}<text class="small" y="4" text-anchor="middle">{worker}</text></g>'
            )
        marks.append(f'<path class="dark strong" d="M{x0 + k * x:.2f},{y0 - k * y:.2f} m-6,0 h12 m-6,-6 v12"/>')
    return [head, f'<g data-rows="">{"".join(marks)}</g>']


def _curve(document: Plain, place: int, curve: Plain, at: float) -> list[str]:
    samples, end = curve["samples"], document["end"] or 1.0
    most = max(value for _, value in samples) or 1.0
    low, high, wide = CURVE - 8, CURVE - 28, WIDTH - 2 * EDGE
    line = " ".join(f"{EDGE + wide * when / end:.1f},{low - high * value / most:.1f}" for when, value in samples)
    value = value_at(samples, at)
    x = EDGE + wide * at / end
    said = f"{curve['name']}: " + ("" if value is None else f"{value:.3g}")
    return [
        f'<text data-curve="{place}" class="small" x="4" y="14">{escape(said)}</text>',
        f'<polyline class="s0" stroke-width="1.5" points="{line}"/>',
        f'<line data-now="{place}" class="dark" x1="{x:.2f}" x2="{x:.2f}" y1="18" y2="{low}"/>',
    ]


def _state(document: Plain, lane: int, at: float) -> int | None:
    """Returns the index of KINDS of what a lane does."""
    return next((kind for of, start, end, kind in document["spans"] if of == lane and start <= at < end), None)


def _last(samples: list[list[Any]], at: float) -> list[Any] | None:
    """Returns the last sample [lane, at, ...] by then."""
    return next((each for each in reversed(samples) if each[1] <= at), None)
