"""The output of `paceline advise`."""

import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .advise_recommended import dollars_of, recommended
from .output import aligned

if TYPE_CHECKING:
    from ..advise.answer import Answer
    from ..advise.candidate import Predicted
    from ..advise.why_not import Family

SHORT = 25  # lines of a terminal
LEAST = 4  # of these for the table, before notes
NOTES = 2
COLUMNS = ("line", "family", "layout", "workers", "step", "in all", "goodput", "US$", "memory", "sent/step", "front")


def columns(found: "Answer") -> list[str]:
    """Returns the columns that this answer has."""
    question = found.question
    unused = {
        "in all": question.tokens is None,
        "goodput": question.failures is None,
        "front": not found.front,
    }
    return [name for name in COLUMNS if not unused.get(name, False)]


def nothing_fits(found: "Answer") -> "ConfigError":
    from ..advise.none import why_none

    return ConfigError(why_none(found))


def cells(found: "Answer", row: "Predicted", i: int) -> list[str]:
    """Returns the texts of a row, one for each of `columns`."""
    from ..advise.limits import in_all
    from ..tracking.compare import human_bytes
    from .step_time import time_of

    candidate = row.candidate
    about = "" if row.exact else "~"
    step = "-" if row.seconds is None else time_of(row.seconds)
    whole = (
        "-" if row.seconds is None or found.question.tokens is None else time_of(in_all(found.question, row.seconds))
    )
    texts = [
        str(i) if i else "",
        candidate.family,
        candidate.group + (f" ({candidate.raced})" if candidate.raced else ""),
        str(candidate.workers),
        step,
        whole,
        "-" if row.goodput is None else f"{row.goodput:.1%}",
        "-" if row.dollars is None else dollars_of(row.dollars),
        f"{about}{human_bytes(row.device)}{'' if row.roomy else '!'}",
        "-" if row.sent is None else f"{'~' if row.unstated else about}{human_bytes(row.sent)}",
        "*" if row.candidate in {each.candidate for each in found.front} else "",
    ]
    shown = columns(found)
    return [text for name, text in zip(COLUMNS, texts, strict=True) if name in shown]


def for_people(found: "Answer") -> str:
    from ..advise.commands import command

    lines, others = _table(found), only_on_front(found)
    commands = [f"{i:>3}  {command(found.question, row.candidate)}" for i, row in enumerate(found.rows, 1)]
    commands += [f"  *  {command(found.question, row.candidate)}" for row in others]
    parts = ["\n".join(recommended(found)), title(found), "\n".join(lines), "\n".join(commands)]
    told = _families(found)
    parts += [*(["\n".join(told)] if told else []), "\n".join(_footnotes(found))]
    return "\n\n".join(part for part in parts if part)


def in_short(found: "Answer", width: int) -> str:
    """The recommendation and as much of the rest as 25 lines of a terminal hold."""
    lines = _table(found)
    head, most = [*recommended(found), "", title(found), ""], SHORT - found.interrupted  # which is a line of its own
    tail = [*(f"note: {text}" for text in found.notes[:NOTES]), _rest(lines[1:])]
    room = most - _height([*head, *tail], width) - 1
    while len(tail) > 1 and room < LEAST:  # of the table
        del tail[-2]
        room = most - _height([*head, *tail], width) - 1
    kept = lines[: max(room // _height(lines[:1], width), 0)]
    tail[-1] = _rest(lines[max(len(kept), 1) :])
    return "\n".join([*head, *kept, *([""] if kept else []), *tail])


def _rest(left: list[str]) -> str:
    """Says what is left out, of the table these lines."""
    front = sum(line.endswith("*") for line in left)
    table = f"{len(left)} more lines of the table{f', {front} of them on the front' if front else ''}, " if left else ""
    return f"--all shows the rest: {table}a command for each line, why not the other layouts, and notes"


def _height(lines: list[str], width: int) -> int:
    """Lines of a terminal that these take."""
    return sum(max(1, -(-len(line) // width)) for line in lines)


def only_on_front(found: "Answer") -> "list[Predicted]":
    """Returns the rows of the front that are no lines with a number."""
    shown = {row.candidate for row in found.rows}
    return [row for row in found.front if row.candidate not in shown]


def _table(found: "Answer") -> list[str]:
    table = [columns(found), *(cells(found, row, i) for i, row in enumerate(found.rows, 1))]
    table += [cells(found, row, 0) for row in only_on_front(found)]
    return aligned(table, numbers_from=3)


def title(found: "Answer") -> str:
    from ..advise.ranking import TIE

    question, experiment = found.question, found.question.experiment
    tokens = "" if question.of_sample is None else f" of {question.of_sample:,} tokens"
    ties = f", within {TIE:.0%} the simplest first" if found.sort in ("time", "dollars") else ""
    rate = f"{found.points / max(found.seconds, 1e-9):,.0f} a second"
    return (
        f"{experiment.model.name} on {experiment.data.name}, {question.batch:,} samples{tokens} a step, "
        f"optimizer={experiment.optimizer.name}: {counted(found.points, 'configuration')} looked at ({rate}), "
        f"{found.fit:,} fit; by {found.sort}{ties}"
    )


def none_of(family: "Family") -> str:
    return "none meets the limits" if family.misses else "none fits"


def _families(found: "Answer") -> list[str]:
    from .step_time import time_of

    lines = []
    for family in found.families:
        best = family.best
        if best is None:
            lines.append(f"{family.name}: {none_of(family)}")
        else:
            step = "" if best.seconds is None else f", {time_of(best.seconds)}"
            lines.append(f"{family.name}: best {best.candidate.group} on {best.candidate.workers}{step}")
        lines += [f"    {other}" for other in family.others]
    return ["for each family its best, and why not the rest:", *lines] if lines else []


def _footnotes(found: "Answer") -> list[str]:
    price = found.question.experiment.hardware.machine
    lines = ["* on the Pareto front of time, US$ and memory" if found.front else ""]
    if price is None:
        lines.append("US$: not known; docs/calibrate.md says how to describe this machine, with its price")
    elif price.price_per_hour is None:
        lines.append("US$: not known; hardware.machine.price_per_hour=DOLLARS gives what an hour of a machine costs")
    elif found.question.tokens is None and found.ground is not None:
        lines.append("US$: of a step; --tokens 20e9 gives time and price of a whole training")
    if price is not None and price.devices:
        lines.append(_margin())
    if any(row.candidate.raced for row in found.rows) or found.ground is None:
        lines.append(
            "how well each learns from its samples is never predicted: what is asynchronous or lossy must be raced, "
            "by --race, and comes after the others"
        )
    elif found.ground is not None:
        lines.append("predicted, nothing of it was measured here: docs/predictions.md says how near such figures come")
    return [line for line in [*lines, *(f"note: {text}" for text in found.notes)] if line]


def _margin() -> str:
    from ..cost.published import MEMORY

    kept = ", ".join(f"{its.margin - 1:.0%} of it under {its.software}" for its in MEMORY)
    return (
        f"memory: a margin is left for what published runs held beside their prediction, {kept}; ! has less, comes "
        "last and may run out of memory"
    )


def raw(found: "Answer") -> dict[str, Any]:
    """Returns the answer for `--format json`: seconds, bytes, US dollars."""
    from ..advise.commands import command

    def plain(row: "Predicted") -> dict[str, Any]:
        from ..advise.limits import in_all

        return {
            "family": row.candidate.family,
            "group": row.candidate.group,
            "workers": row.candidate.workers,
            "hosts": row.candidate.hosts,
            "settings": dict(row.candidate.settings),
            "command": command(found.question, row.candidate),
            "step_seconds": row.seconds,
            "seconds": None if row.seconds is None else in_all(found.question, row.seconds),
            "dollars": row.dollars,
            "goodput": row.goodput,
            "memory_bytes": row.device,
            "host_memory_bytes": row.host,
            "margin": row.roomy,
            "sent_bytes_per_step": row.sent,
            "exact": row.exact,
            "sent_exact": row.exact and not row.unstated,
            "raced": row.candidate.raced or None,
            "untimed": row.untimed or None,
        }

    return {
        "samples_per_step": found.question.batch,
        "tokens": found.question.tokens,
        "failures": None if found.question.failures is None else asdict(found.question.failures),
        "sort": found.sort,
        "looked_at": found.points,
        "per_second": found.points / max(found.seconds, 1e-9),
        "fit": found.fit,
        "rows": [plain(row) for row in found.rows],
        "front": [plain(row) for row in found.front],
        "families": [
            {"family": each.name, "best": None if each.best is None else plain(each.best), "others": each.others}
            for each in found.families
        ],
        "notes": found.notes,
    }


def table_as(found: "Answer", format: str) -> str:
    rows = raw(found)["rows"]
    names = [
        "family",
        "group",
        "workers",
        "step_seconds",
        "seconds",
        "dollars",
        *(["goodput"] if found.question.failures is not None else []),
        "memory_bytes",
        "sent_bytes_per_step",
        "command",
    ]
    values = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    if format == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([names, *values])
        return out.getvalue().rstrip("\n")
    lines = [names, ["---"] * len(names), *values]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
