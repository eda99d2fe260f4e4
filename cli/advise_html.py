"""`paceline advise --html FILE`: the answer as a page that opens offline, without scripts."""

from html import escape
from typing import TYPE_CHECKING

from ..conf.counted import counted
from .advise_view import cells, columns, none_of, only_on_front, title

if TYPE_CHECKING:
    from ..advise.answer import Answer
    from ..advise.why_not import Family

STYLE = """<style>
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 15px }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #8886 }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td code { display: block; font-size: .85rem; overflow-wrap: anywhere }
</style>"""


def page(found: "Answer") -> str:
    from ..advise.commands import command
    from ..tracking.drawn.lanes import as_html

    heads = "".join(f"<th{_kind(j)}>{escape(name)}</th>" for j, name in enumerate(columns(found)))
    rows = []
    shown = [*enumerate(found.rows, 1), *((0, row) for row in only_on_front(found))]
    for i, row in shown:
        texts = cells(found, row, i)
        tags = "".join(f"<td{_kind(j)}>{escape(text)}</td>" for j, text in enumerate(texts))
        said = escape(command(found.question, row.candidate))
        rows.append(f'<tr>{tags}</tr><tr><td colspan="{len(columns(found))}"><code>{said}</code></td></tr>')
    families = "".join(
        f"<h3>{escape(each.name)}</h3><p>{escape(_best(each))}</p><ul>"
        + "".join(f"<li>{escape(text)}</li>" for text in each.others)
        + "</ul>"
        for each in found.families
    )
    notes = "".join(f"<li>{escape(text)}</li>" for text in found.notes)
    body = (
        f"{STYLE}<p>{escape(title(found))}</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of configurations, scrolls">'
        f"<table><tr>{heads}</tr>{''.join(rows)}</table></div>"
        f"<h2>For each family its best, and why not the rest</h2>{families}<ul>{notes}</ul>"
    )
    return as_html("paceline advise", body)


def _kind(column: int) -> str:
    return "" if column in (1, 2) else ' class="number"'  # the family and the layout are words


def _best(family: "Family") -> str:
    row = family.best
    if row is None:
        return none_of(family)
    return f"best: {row.candidate.group} on {counted(row.candidate.workers, 'worker')}"
