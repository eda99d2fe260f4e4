"""A choice explained, in the terminal and as a page."""

import re
import shlex
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from .output import aligned, terminal_width

if TYPE_CHECKING:
    from ..engine.api.small_run import SmallRun
    from ..engine.config.explained import ChoiceExplanation

WIDEST = 100  # characters of a line of text
MARKS = {"compute": "#", "waiting": ".", "communication": "~"}  # the last, where several are in one place, is seen
LISTED = 16  # messages, in the terminal
UNKNOWN = {"use": "its file does not say when to use it", "sources": "its file names no paper"}
NO_DEFAULT = "???"  # in a YAML
SUMMED = "How the sum is made"
Plain = dict[str, Any]


def lanes_of(run: "SmallRun") -> Plain:
    from ..tracking.lanes import read

    return read(run.trace)


def raw(explained: "ChoiceExplanation", run: "SmallRun | None", lanes: Plain | None, why: str) -> Plain:
    """Returns the explanation for `--format json`: bytes a worker and step, times of the pictures in microseconds."""
    title = f"{explained.group}={explained.name}"
    of_run = None if run is None else {"command": command(run), "sent": _sent(run), "picture": lanes}
    if run is not None and of_run is not None:
        of_run["player"] = player_of(title, run)
    return {**explained.as_dict(), "run": of_run, "no_picture": why or None}


def player_of(title: str, run: "SmallRun") -> Plain:
    """`run`: one that was watched."""
    from ..tracking.player import of_run

    assert run.samples is not None, "explain watches the run of a page and of JSON"
    return of_run(title, run.trace, run.samples)


def command(run: "SmallRun") -> str:
    return shlex.join(["paceline", "train", *run.overrides, "--trace", "trace.json"])


def _sent(run: "SmallRun") -> dict[str, float | None]:
    """Returns the bytes that `cost()` states and those that this run sent, a worker and step."""
    return {
        "stated": run.summary["predicted"]["bytes_per_step"],
        "measured": run.summary["wire"]["bytes_per_step"],
    }


# -- for people


def for_people(
    explained: "ChoiceExplanation", run: "SmallRun | None", lanes: Plain | None, why: str, summed: str = ""
) -> str:
    """`summed`: how a collective makes a sum."""
    width = min(terminal_width() or WIDEST, WIDEST)
    title = f"{explained.group}={explained.name}"
    paragraphs = [_wrapped(f"{title}: {explained.line or explained.what}", width), f"from {explained.file}"]
    for head, texts in _sections(explained, run):
        paragraphs += [head.upper(), *(_wrapped(text, width) for text in texts)]
    paragraphs.append("WHO SENDS WHAT TO WHOM")
    if run is None or lanes is None:
        paragraphs.append(_wrapped(f"There is no picture: {why}", width))
    else:
        paragraphs += ["\n".join(_drawn(lanes, width)), "\n".join(_messages(lanes)), f"again: {command(run)}"]
    if summed:
        paragraphs += [SUMMED.upper(), summed]
    return "\n\n".join(paragraphs)


def _sections(explained: "ChoiceExplanation", run: "SmallRun | None") -> list[tuple[str, tuple[str, ...]]]:
    cost = explained.cost + (() if run is None else (_measured(run),))
    knobs = tuple(f"{explained.group}.{name}={_value(value)}" for name, value in explained.knobs.items())
    told = [
        ("what it does", (explained.what, *explained.rule)),
        ("cost", cost),
        ("when to use it", explained.use or (f"{UNKNOWN['use']}.",)),
        ("deviations", explained.deviations),
        ("papers", explained.sources or (f"{UNKNOWN['sources']}.",)),
        ("knobs", (" ".join(knobs),) if knobs else ()),
    ]
    return [(head, texts) for head, texts in told if texts]


def _measured(run: "SmallRun") -> str:
    from ..tracking.compare import human_bytes

    stated, sent = _sent(run).values()
    workers = counted(run.summary["workers"], "worker")
    estimated = "nothing could be stated beforehand" if stated is None else f"{human_bytes(stated)} are stated"
    return (
        f"In the small run below, {workers} of {run.summary['model']} on {run.summary['data']}: {estimated}, and "
        f"{human_bytes(sent or 0.0)} were sent, for each worker and step."
    )


def _value(value: Any) -> str:
    from ..conf.grammar import as_override

    return "VALUE (it has no default)" if value == NO_DEFAULT else as_override(value)


def _wrapped(text: str, width: int) -> str:
    return text if text.startswith("    ") else textwrap.fill(text, width, break_on_hyphens=False)


def _drawn(lanes: Plain, width: int) -> list[str]:
    """A line a lane: what it did in each column's time; what is rare is seen before what is common."""
    label = max(len(row["name"]) for row in lanes["lanes"])
    columns = max(width - label - 1, 20)
    scale = columns / ((lanes["end"] - lanes["begin"]) or 1.0)
    lines: list[str] = []
    for row in lanes["lanes"]:
        cells = [" "] * columns
        for kind in ("waiting", "compute", "communication"):
            for span in (each for each in row["spans"] if each["kind"] == kind):
                start = int((span["start"] - lanes["begin"]) * scale)
                end = max(int((span["end"] - lanes["begin"]) * scale), start + 1)
                cells[start:end] = MARKS[kind] * (min(end, columns) - start)
        lines.append(f"{row['name']:<{label}} {''.join(cells[:columns])}".rstrip())
    took = (lanes["end"] - lanes["begin"]) / 1e3
    says = f"# computes, ~ is blocked by a message or a sum under way, . waits for another; {took:.3g} ms"
    return [says, *lines]


def _messages(lanes: Plain) -> list[str]:
    from ..tracking.drawn.lanes import in_words

    rows, begin = lanes["lanes"], lanes["begin"]
    table: list[list[str]] = []
    for each in lanes["messages"][:LISTED]:
        to = f"{rows[each['from']]['name']} -> {rows[each['to']]['name']}"
        came = f"{(each['came'] - begin) / 1e3:.3f} ms"
        table.append([f"  {(each['left'] - begin) / 1e3:.3f} ms", to, each["purpose"], f"there at {came}"])
    more = len(lanes["messages"]) - LISTED
    lines = [in_words(lanes), *(aligned(table, numbers_from=4) if table else [])]
    lines += [f"  and {more:,} more: --format json, --html FILE"] if more > 0 else []
    for each in lanes["sums"][:LISTED]:
        lines.append(f"  {(each['at'] - begin) / 1e3:.3f} ms  {each['name']} among {_among(each['lanes'])}")
    return lines


def _among(lanes: list[int]) -> str:
    whole = lanes == list(range(lanes[0], lanes[-1] + 1)) and len(lanes) > 2
    return f"{lanes[0]} to {lanes[-1]}" if whole else ", ".join(map(str, lanes))


# -- as a page


def as_page(
    explained: "ChoiceExplanation", run: "SmallRun | None", lanes: Plain | None, why: str, summed: Plain | str = ""
) -> str:
    """`summed`: the player's document of a collective's sum, or why there is none."""
    from ..tracking.drawn import player
    from ..tracking.drawn.lanes import as_html, as_svg, in_page, in_words

    title = f"{explained.group}={explained.name}"
    parts = [f"<p>{_marked_up(explained.line)} ({escape(explained.file)})</p>"]
    for head, texts in _sections(explained, run):
        parts.append(f"<h2>{escape(head.capitalize())}</h2>")
        for text in texts:
            parts.append(
                _preformatted(textwrap.dedent(text)) if text.startswith("    ") else f"<p>{_marked_up(text)}</p>"
            )
    if summed:
        drawn = player.as_html(summed) if isinstance(summed, dict) else _no_picture(summed)
        parts += [f"<h2>{SUMMED}</h2>", drawn]
    parts.append("<h2>Who sends what to whom</h2>")
    if run is None or lanes is None:
        parts.append(_no_picture(why))
    else:
        parts += [in_page(as_svg(title, lanes)), f"<p>{escape(in_words(lanes))}</p>", _preformatted(command(run))]
        parts += ["<h2>What each holds</h2>", player.as_html(player_of(title, run))]
    return as_html(title, "\n".join([player.STYLE, *parts]), player.script())


def _marked_up(text: str) -> str:
    """Returns a docstring's text as HTML: `code`, and *stressed* words."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"(?<![\w*])\*(\w[^*<]*)\*(?![\w*])", r"<em>\1</em>", code)


def _preformatted(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'  # it scrolls by keyboard


def _no_picture(why: str) -> str:
    return f"<p>There is no picture: {escape(why)}</p>"
