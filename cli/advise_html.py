"""`paceline advise --html FILE`: the answer as a page that opens offline, without scripts."""

from html import escape
from typing import TYPE_CHECKING

from .advise_view import cells, columns, none_of, title

if TYPE_CHECKING:
    from ..advise.answer import Answer
    from ..advise.why_not import Family

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #8886 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
code { display: block; overflow-x: auto; white-space: pre; font-size: .85rem }
"""


def page(found: "Answer") -> str:
    from ..advise.commands import command

    heads = "".join(f"<th>{escape(name)}</th>" for name in columns(found))
    rows = []
    shown = [*enumerate(found.rows, 1), *((0, row) for row in found.front if row not in found.rows)]
    for i, row in shown:
        texts = cells(found, row, i)
        tags = "".join(
            f'<td class="number">{escape(text)}</td>' if j not in (1, 2) else f"<td>{escape(text)}</td>"
            for j, text in enumerate(texts)
        )
        said = escape(command(found.question, row.candidate))
        rows.append(f'<tr>{tags}</tr><tr><td colspan="{len(columns(found))}"><code>{said}</code></td></tr>')
    families = "".join(
        f"<h3>{escape(each.name)}</h3><p>{escape(_best(each))}</p><ul>"
        + "".join(f"<li>{escape(text)}</li>" for text in each.others)
        + "</ul>"
        for each in found.families
    )
    notes = "".join(f"<li>{escape(text)}</li>" for text in found.notes)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline advise</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style><body><h1>paceline advise</h1><p>{escape(title(found))}</p>"
        f"<table><tr>{heads}</tr>{''.join(rows)}</table>"
        f"<h2>For each family its best, and why not the rest</h2>{families}<ul>{notes}</ul></body></html>\n"
    )


def _best(family: "Family") -> str:
    row = family.best
    if row is None:
        return none_of(family)
    return f"best: {row.candidate.group} on {row.candidate.workers} workers"
