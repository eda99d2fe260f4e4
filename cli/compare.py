"""`paceline compare`: runs side by side."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..conf.counted import counted
from .completion import complete_column, complete_source
from .output import note, note_damage, note_disturbed, shortest, show, terminal_width

if TYPE_CHECKING:
    from ..tracking.drawn.style import PictureStyle
    from ..tracking.figures.request import FigureRequest
    from ..tracking.run_data import RunData
    from ..tracking.summaries import Row

Format = Literal["table", "json", "csv", "markdown", "latex"]
OF_FORM = {"--html": ".html", "--svg": ".svg"}
OTHER_FORMS = (".gif", ".html", ".jpeg", ".jpg", ".pdf", ".png", ".svg")


def _directory(text: str) -> Path:
    """Raises TableError. An empty name would be the current directory."""
    from ..tracking.errors import TableError

    if not text:
        raise TableError("--png '': must name a directory")
    return Path(text)


# -- options

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="Runs, sweeps, SWEEP/RUN (names or directories), W&B folders, exported JSON. "
        "Default: all runs under runs/ but those of sweeps, in order of time.",
        show_default=False,
        autocompletion=complete_source,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Add speed-ups and ratios to this run or mean of seeds.", autocompletion=complete_source
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION", help="Only these: sync=ssp, 'workers>=4', optimizer.lr=0.1. May be repeated: all hold."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Show these: columns (paceline list columns), configuration keys, W&B's summary names.",
    ),
]
Pareto = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Mark with * what no other run beats in all of these: accuracy,bytes."),
]
NoGroup = Annotated[
    bool,
    typer.Option("--no-group", help="Show repeated seeds one by one, instead of their mean and 95 % interval."),
]
Memory = Annotated[
    bool, typer.Option("--memory", help="Show each kind of memory, of the largest worker, instead of the rest.")
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a report, too: one page that opens offline.", show_default=False),
]
Png = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write pictures for papers, too.", show_default=False, parser=_directory),
]
Figure = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'x=A y=B line=C'",
        help="With --html or --png: draw B against A, a line for each C; or FILE.yaml, a sweep's own figures. "
        "May be repeated.",
        show_default=False,
    ),
]
Caption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="With --format latex: the table's caption.", show_default=False)
]
Label = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --format latex: its label, tab:results.", show_default=False)
]
Size = Annotated[
    str | None,
    typer.Option(metavar="WxH", help="With --png: the size of each picture, 3.4x2.4in or 85x60mm.", show_default=False),
]
Title = Annotated[
    str | None, typer.Option(metavar="TEXT", help="With --png: a title above each picture.", show_default=False)
]
Font = Annotated[
    str | None,
    typer.Option(
        metavar="FONT", help="With --png: FILE.ttf, the size of letters in points, or FILE.ttf,9.", show_default=False
    ),
]


def compare(
    runs: Runs = None,
    format: Annotated[Format, typer.Option(help="json and csv hold raw values, with units in the names.")] = "table",
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Best first: throughput, accuracy, step, memory, bytes, ...",
            autocompletion=complete_column,
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="With --sort: worst first.")] = False,
    baseline: Baseline = None,
    where: Where = None,
    columns: Columns = None,
    pareto: Pareto = None,
    no_group: NoGroup = False,
    memory: Memory = False,
    html: Html = None,
    png: Png = None,
    figure: Figure = None,
    size: Size = None,
    title: Title = None,
    font: Font = None,
    caption: Caption = None,
    label: Label = None,
) -> None:
    """Set runs side by side.

    Throughput, step time, memory, bytes sent, accuracy and time to accuracy, one row a run; runs that differ in their
    seed alone are one row, mean ± half of the 95 % interval; a knob by which alone others differ is a column. In a
    terminal, or with COLUMNS set, the table leaves out the columns that do not fit and names them; piped, and in the
    other formats, it is whole. A run with a damaged summary is shown as damaged; one that is named (RUN, --baseline)
    ends the command with exit status 7.

    \b
    paceline compare                                all runs under runs/ but those of sweeps
    paceline compare bsp asp --baseline bsp         two runs, with ratios to one
    paceline compare my-sweep --sort accuracy       a sweep
    paceline compare --where 'accuracy>0.9' --pareto accuracy,bytes
    paceline compare --columns sync,optimizer.lr,accuracy
    paceline compare --memory                       where the memory went
    paceline compare my-sweep --png pictures --figure 'x=hardware.workers y=time_to_accuracy line=sync'
    paceline compare --format markdown >> README.md
    paceline compare --format latex --caption 'Two workers' --label tab:two > two.tex
    paceline compare my-sweep --png pictures --size 3.4x2.4in --font 8 --title 'Two workers'
    """
    from ..tracking import compare as tables
    from ..tracking.baseline import note_on

    check_outputs(html, png)
    if png is not None:
        from ..tracking.drawn.converted import check_there

        check_there()
    style = _style(png, size, title, font)
    _check_caption(format, caption, label)
    figures = _figures(figure, html, png)
    picked, front = _listed("--columns", columns), _listed("--pareto", pareto)
    records = bool(html or png) or (format in ("json", "csv") and not picked)
    records = records or _of_records([*picked, *front, *(where or []), sort or ""])
    found = gathered(runs, records)
    reference = None
    if baseline is not None:
        found, reference = _with_baseline(found, baseline, not no_group, records)
    note_damage(found)
    request = tables.ComparisonRequest(reference, not no_group, tuple(where or ()), front, picked, sort, reverse)
    table, shown = tables.table(found, request)
    keys = tables.column_keys(request, found, table)
    _check_figures(shown, figures)
    if table or format != "table":  # a head without rows says nothing
        show(tables.render(table, format, terminal_width(), memory, keys, (caption, label)))
    note_disturbed(table)
    if missing := note_on(table):
        note(f"note: {missing}")
    if not table:
        note(f"none of {counted(len(found), 'run')} fulfils {' and '.join(where or [])}")
    _write(shown, table, keys, Outputs(html, png, figures, style), is_sorted=sort is not None)


@dataclass(frozen=True)
class Outputs:
    html: Path | None
    png: Path | None
    figures: "list[FigureRequest]"  # that are asked for; those of the sweeps come on top
    style: "PictureStyle"


def _style(png: Path | None, size: str | None, title: str | None, font: str | None) -> "PictureStyle":
    """Raises TableError."""
    from ..tracking.drawn.style import PictureStyle
    from ..tracking.errors import TableError

    for option, given in (("--size", size), ("--title", title), ("--font", font)):
        if given is not None and png is None:
            raise TableError(f"{option} {given}: goes with --png DIR, where the pictures are written")
    return PictureStyle.parse(size, title, font)


def _check_caption(format: str, caption: str | None, label: str | None) -> None:
    """Raises TableError."""
    from ..tracking.errors import TableError

    for option, given in (("--caption", caption), ("--label", label)):
        if given is not None and format != "latex":
            raise TableError(f"{option} {given}: goes with --format latex")


def _figures(texts: list[str] | None, html: Path | None, png: Path | None) -> "list[FigureRequest]":
    """Raises TableError."""
    from ..tracking.errors import TableError
    from ..tracking.figures.request import asked

    if texts and html is None and png is None:
        raise TableError(f"--figure {texts[0]}: goes with --html FILE or --png DIR, which say where it is drawn")
    return asked(texts or [])


def _check_figures(runs: "list[RunData]", figures: "list[FigureRequest]") -> None:
    """Checks the figures before anything is shown. Raises TableError."""
    if figures:
        from ..tracking.figures.built import check

        for request in figures:
            check(runs, request)


def _of_records(words: list[str]) -> bool:
    """Returns whether a column is named that needs the runs' records, which a table does without."""
    from ..tracking.columns import BY_KEY
    from ..tracking.derived import OF_RECORDS

    columns = [BY_KEY[key] for key in OF_RECORDS]
    names = [name.casefold() for each in columns for name in (each.key, each.title, each.short) if name]
    return any(name in word.casefold() for word in words for name in names)


def check_file(option: str, file: Path | None) -> None:
    """One to write, if any. Raises TableError."""
    from ..tracking.errors import TableError

    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        reason = "is a directory" if file.is_dir() else f"there is no directory {file.parent}"
        raise TableError(f"{option} {file}: must name a file to write; {reason}")
    if file is not None and file.exists() and not file.is_file():
        raise TableError(f"{option} {file}: must name a file to write; it is a device or a pipe")
    if file is not None and Path(os.path.realpath(file)).is_symlink():
        raise TableError(f"{option} {file}: must name a file to write; it is a link to itself")
    wanted = OF_FORM.get(option)
    if file is not None and wanted is not None and wanted != (suffix := file.suffix.lower()) in OTHER_FORMS:
        raise TableError(f"{option} {file}: writes {wanted} and no {suffix}. Choose a name that ends in {wanted}.")


def check_outputs(html: Path | None, png: Path | None) -> None:
    """Checks the output paths before anything is read. Raises TableError."""
    from ..tracking.errors import TableError

    check_file("--html", html)
    if png is not None and png.exists() and not png.is_dir():
        raise TableError(f"--png {png}: must name a directory, and is a file")
    if png is not None and png.suffix.lower() in OTHER_FORMS and not png.exists():
        raise TableError(f"--png {png}: must name a directory; its pictures have names of their own")


def gathered(names: list[str] | None, records: bool) -> "list[RunData]":
    """The named runs, or all under runs/ but those of sweeps, by time. Raises RunNameError or CorruptRunError."""
    from ..engine import ROOT
    from ..tracking import sources
    from ..tracking.errors import RunNameError

    if names:
        return sources.gather(names, ROOT, records, whole=True)
    sweeps = ", ".join(sources.sweep_names(ROOT))
    found = sources.every(ROOT, records)
    if not found and sweeps:
        raise RunNameError(f"there are no runs under {ROOT} but those of sweeps ({sweeps}); name one of these")
    if not found:
        raise RunNameError(f"there are no runs under {ROOT} yet; train one: paceline train")
    if sweeps:
        note(f"not shown: the runs of the sweeps {sweeps}; name one to see them")
    return found


def _with_baseline(found: "list[RunData]", name: str, group: bool, records: bool) -> "tuple[list[RunData], RunData]":
    """The runs, the baseline among them, and the baseline: of a group of seeds, one of its completed runs.

    Raises RunNameError, CorruptRunError or TableError.
    """
    from ..tracking import compare as tables
    from ..tracking import sources
    from ..tracking.errors import TableError

    known = tables.find(found, name)
    if known is not None:
        if known.path is not None:
            sources.check(known)
        return found, known
    others = tables.members(found, name)
    seeds = bool(others)
    if not others:
        others, seeds = _elsewhere(name, records)
    if len(others) > 1 and not (seeds and group):
        examples = ", ".join(run.name for run in others[:3])
        more = "; without --no-group their mean can be" if seeds else ""
        raise TableError(f"--baseline {name}: must be one run, and is {len(others)} ({examples}, ...){more}")
    there: dict[Path | None, RunData] = {run.path: run for run in found if run.path is not None}
    shown = {id(run) for run in found}
    aggregation = [run for run in others if run.path not in there and id(run) not in shown]
    first = next(iter(others))
    return [*aggregation, *found], there.get(first.path, first)


def _elsewhere(name: str, records: bool) -> "tuple[tuple[RunData, ...], bool]":
    """The runs that `name` stands for, and whether they are a sweep's group of seeds (SWEEP/GROUP).

    Raises RunNameError or CorruptRunError.
    """
    from ..engine import ROOT
    from ..tracking import compare as tables
    from ..tracking import sources
    from ..tracking.errors import RunNameError

    try:
        return tuple(sources.gather([name], ROOT, records, whole=True)), False
    except RunNameError:
        sweep, _, group = name.rpartition("/")
        try:
            seeds = tables.members(sources.gather([sweep], ROOT, records), group) if sweep else ()
        except RunNameError:
            seeds = ()
        if not seeds:
            raise
        return seeds, True


def _write(runs: "list[RunData]", table: "list[Row]", keys: list[str], outputs: Outputs, is_sorted: bool) -> None:
    from ..tracking.errors import TableError
    from ..tracking.figures.built import usable
    from ..tracking.figures.request import of_sweeps

    if not (outputs.html or outputs.png):
        return
    own = [request for request in of_sweeps(runs) if request not in outputs.figures]
    requests = [*outputs.figures, *usable(runs, own)]
    if outputs.html is not None:
        from ..tracking.judged import best_first, metric_of
        from ..tracking.report import write_report

        metric = metric_of(runs)
        ranked = table if metric is None or is_sorted else best_first(table, metric, runs)
        write_report(runs, outputs.html, ranked, keys, metric, requests)
        note(f"report: {shortest(outputs.html)}")
    if outputs.png is not None:
        from ..tracking.pictures import write_pictures

        alone = bool(outputs.figures)
        pictures = write_pictures(runs, outputs.png, outputs.figures if alone else requests, alone, outputs.style)
        if not pictures:
            raise TableError(f"--png {outputs.png}: these runs have nothing to draw. Choose runs that have finished.")
        note(f"{counted(len(pictures), 'picture')}: {shortest(outputs.png)}")


def _listed(option: str, words: str | None) -> tuple[str, ...]:
    """Raises TableError."""
    from ..tracking.errors import TableError

    listed = tuple(word.strip() for word in words.split(",") if word.strip()) if words is not None else ()
    if words is not None and not listed:
        raise TableError(f"{option} {words!r}: must name columns, such as accuracy,bytes")
    return listed
