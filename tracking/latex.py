"""A comparison's table in LaTeX, with the rules of the package booktabs."""

import re
from collections.abc import Sequence

from .errors import TableError

_LABEL = re.compile(r"[A-Za-z0-9:._/-]+")
_MEANINGS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u2026": r"\ldots{}",
    "[": "{[}",  # after the end of a row it would be a length
    "]": "{]}",
    "*": "{*}",  # and this a part of that end
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    '"': r"{\ttfamily\char34}",  # other fonts have none in LaTeX's usual encoding
    "-": "-{}",  # before another one: no dash is made of them
    "\u2264": r"$\leq$",
    "\u2265": r"$\geq$",
    "\u2192": r"$\rightarrow$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_SPECIAL = re.compile("-(?=-)|" + "|".join(re.escape(each) for each in _MEANINGS if each != "-"))
_OTHER = re.compile("[^\u0000-\u017f\u2013\u2014\u2018\u2019\u201c\u201d\u20ac]")  # letters that pdfLaTeX does not know


def escaped(text: str) -> str:
    """The text as LaTeX shows it: each special character is itself."""
    return _SPECIAL.sub(lambda found: _MEANINGS[found[0]], text)


def latex_table(
    titles: Sequence[str],
    numbers: Sequence[bool],
    cells: Sequence[Sequence[str]],
    caption: str | None = None,
    label: str | None = None,
) -> str:
    """A `tabular`, in a `table` where it has a caption or a label. `numbers`: which columns stand flush right.

    Raises TableError for a label that LaTeX does not take.
    """
    if label is not None and not _LABEL.fullmatch(label):
        raise TableError(f"--label {label}: must be letters, digits and :._/-. Choose tab:results.")
    sides = "".join("r" if is_number else "l" for is_number in numbers)
    lines = [
        rf"\begin{{tabular}}{{{sides}}}",
        r"  \toprule",
        _line(titles),
        r"  \midrule",
        *map(_line, cells),
        r"  \bottomrule",
        r"\end{tabular}",
    ]
    if caption is not None or label is not None:
        head = [rf"\caption{{{escaped(' '.join(caption.split()))}}}"] if caption is not None else []
        head += [rf"\label{{{label}}}"] if label is not None else []  # after the caption, whose number it takes
        lines = [r"\begin{table}", *(f"  {line}" for line in [r"\centering", *head, *lines]), r"\end{table}"]
    others = "".join(dict.fromkeys(_OTHER.findall("".join(lines))))
    needs = rf"% needs \usepackage{{booktabs}}{f', and XeLaTeX or LuaLaTeX for {others}' if others else ''}"
    return "\n".join([needs, *lines]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"  {' & '.join(map(escaped, cells))} \\\\"
