"""The report's main plots as PNG and PDF files, for papers."""

import io
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compare import human_bytes
from .errors import StorageError
from .report.curves import ACCURACY, R2, Curve, curves_of
from .report.document import MEMORY_KINDS, STEP_PARTS, by_kind, finite, is_modelled, section, seeds_of, settings_of
from .report.palette import DASHES, LIGHT, MARKERS, MEMORY_COLOURS, STEP_COLOURS, Look, look
from .report.text import shown
from .report.verdict import bytes_of_a_step
from .sources import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
NAMED = 24  # runs in a legend
ROWS = 60  # runs in a picture of bars
NAME_CHARACTERS = 40
MARKED = 160  # points in a picture that have markers
# On/off lengths and markers of matplotlib's for the palette's names.
_DASHES: dict[str, tuple[float, ...]] = dict(
    zip(DASHES, [(), (5, 2), (1, 1.5), (5, 1.5, 1, 1.5), (9, 3), (9, 2, 1, 2)], strict=True)
)
_MARKERS: dict[str, str] = dict(zip(MARKERS, "osD^X*Pphd", strict=True))

Numbered = tuple[int, RunData]  # a run and the number of its setting: its look, as in the report
Draw = Callable[[list[Numbered]], "Figure | None"]


def write_pictures(runs: list[RunData], directory: Path) -> list[Path]:
    """accuracy-time, accuracy-epochs, accuracy-bytes, throughput, step-time and memory, each as .png and .pdf.

    Of runs whose metric is R^2: r2-time, r2-epochs and r2-bytes. What no run knows has no picture. Modelled runs have
    pictures of their own, whose names begin with modelled-.
    Returns the files. Raises StorageError when one cannot be written.
    """
    settings = settings_of([group["runs"] for group in seeds_of(runs)], len(runs))
    numbered = list(zip(settings, runs, strict=True))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [
            file
            for modelled in (False, True)
            for name, draw in _pictures().items()
            for file in _write(
                draw([(i, run) for i, run in numbered if is_modelled(run) == modelled]),
                directory / (f"modelled-{name}" if modelled else name),
                modelled,
            )
        ]
    except OSError as error:
        raise StorageError(f"cannot write pictures to {directory}: {error.strerror or error}") from error


def _pictures() -> dict[str, Draw]:
    return {
        **{
            f"{metric}-{against}": partial(_curves, metric, *how)
            for metric in _SCORES
            for against, how in _AXES.items()
        },
        "throughput": _throughput,
        "step-time": _step_time,
        "memory": _memory,
    }


def _write(figure: "Figure | None", stem: Path, modelled: bool) -> list[Path]:
    if figure is None:
        return []
    if modelled:
        figure.suptitle("Modelled (virtual cluster)", fontsize=10)
    files = []
    for suffix, unknown in ((".png", {"Software": None}), (".pdf", {"CreationDate": None, "Producer": None})):
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # shown as a box
            figure.savefig(content, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=unknown)
        file = stem.with_name(stem.name + suffix)
        file.write_bytes(content.getvalue())
        files.append(file)
    return files


# -- accuracy


def _bytes(run: RunData, curve: Curve) -> Any:
    a_step = bytes_of_a_step(run.summary)
    return None if a_step is None else curve.steps * a_step


def _byte_ticks(top: float) -> list[float]:
    """0, 20 MiB, 40 MiB, ...: about five, of 1, 2 or 5 times a power of ten of a unit."""
    unit = 1024.0 ** min(int(math.log(max(top, 1.0), 1024)), 4)
    rough = top / unit / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(times for times in (1, 2, 5, 10) if times * power >= rough) * power * unit
    return [i * distance for i in range(int(top / distance) + 1)]


_AXES: dict[str, tuple[str, Callable[[RunData, Curve], Any]]] = {
    "time": ("training time, s", lambda run, curve: curve.seconds),
    "epochs": ("epochs", lambda run, curve: curve.epochs),
    "bytes": ("bytes sent by all workers", _bytes),
}
_SCORES = {ACCURACY: ("accuracy, %", 100.0), R2: ("R^2", 1.0)}  # title of the axis, and its unit in that of the values


def _curves(metric: str, title: str, x_of: Callable[[RunData, Curve], Any], runs: list[Numbered]) -> "Figure | None":
    found = [(i, run, curve) for i, run in runs if (curve := curves_of(run).get(metric)) is not None]
    name, factor = _SCORES[metric]
    drawn = [(i, run, curve, x) for i, run, curve in found if (x := x_of(run, curve)) is not None]
    if not drawn:
        return None
    named = len(drawn) <= NAMED
    figure, axes = _figure(6.4, max(3.6, 0.21 * len(drawn) + 0.9) if named else 3.6)
    lines = [
        axes.plot(x, factor * curve.values, **_line(look(i), len(curve), len(drawn)))[0] for i, _, curve, x in drawn
    ]
    axes.set_xlabel(title)
    axes.set_ylabel(name)
    axes.grid(True, color="#e6eaee", linewidth=0.6)
    if "bytes" in title:
        ticks = _byte_ticks(max(x.max() for *_, x in drawn))
        axes.set_xticks(ticks, [human_bytes(tick).replace(".0 ", " ") for tick in ticks])
    if named:
        legend = axes.legend(
            lines, [""] * len(lines), fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0),
            handlelength=3.2,
        )  # fmt: skip
        for text, (_, run, *_) in zip(legend.get_texts(), drawn, strict=True):
            text.set_parse_math(False)  # a $ begins no formula
            text.set_text(_label(run))  # not given to legend(), which leaves out names that begin with _
    else:
        axes.set_title(f"{len(drawn)} runs", fontsize=9, loc="left")
    return figure


def _line(appearance: Look, points: int, runs: int) -> dict[str, Any]:
    dash = _DASHES[appearance.dash]
    return {
        "color": LIGHT[appearance.colour],
        "linewidth": 1.4 if runs <= NAMED else 0.7,
        "linestyle": (0, dash) if dash else "-",
        "marker": _MARKERS[appearance.marker] if points * runs <= MARKED else None,
        "markersize": 4,
    }


# -- bars: a row a run


def _throughput(runs: list[Numbered]) -> "Figure | None":
    known = [(run, rate) for _, run in runs if (rate := finite(run.summary.get("throughput"))) is not None]
    if not known:
        return None
    figure, axes = _rows([run for run, _ in known], "samples/s of all workers")
    rates = [rate for _, rate in known[:ROWS]]
    axes.barh(range(len(rates)), rates, height=0.66, color=LIGHT[0])
    return figure


def _step_time(runs: list[Numbered]) -> "Figure | None":
    known = [(run, step) for _, run in runs if (step := _split(run)) is not None]
    if not known:
        return None
    figure, axes = _rows([run for run, _ in known], "median step, ms")
    _stack(axes, [step for _, step in known[:ROWS]], STEP_PARTS, STEP_COLOURS, 0.66, 0.0)
    _kinds_legend(axes)
    return figure


def _split(run: RunData) -> list[float] | None:
    step = section(run.summary, "step_time")
    parts = [finite(step.get(part)) for part in STEP_PARTS]
    return [1e3 * (part or 0.0) for part in parts] if any(part is not None for part in parts) else None


def _memory(runs: list[Numbered]) -> "Figure | None":
    """Measured above, predicted below. The runtime's temporaries ("other") would hide small models: left out."""
    known = [(run, *found) for _, run in runs if any(found := (_held(run, "measured"), _held(run, "predicted")))]
    if not known:
        return None
    figure, axes = _rows([run for run, *_ in known], "MiB of the largest worker (pale: predicted)", 0.34)
    kinds = [i for i, kind in enumerate(MEMORY_KINDS) if any(row and row[i] for _, *of in known for row in of)]
    names = [MEMORY_KINDS[i] for i in kinds]
    for which, offset, alpha in ((0, -0.18, 1.0), (1, 0.18, 0.5)):
        table = [[row[i] if (row := found[which]) else 0.0 for i in kinds] for _, *found in known[:ROWS]]
        _stack(axes, table, names, MEMORY_COLOURS, 0.32, offset, alpha)
    _kinds_legend(axes)
    return figure


def _held(run: RunData, which: str) -> list[float] | None:
    """MiB of each of MEMORY_KINDS, 0 where unknown and for `other`; None when nothing is known."""
    memory = run.summary if which == "measured" else section(run.summary, "predicted")
    held = by_kind(section(memory, "memory"))
    if held is None:
        return None
    return [0.0 if kind == "other" else (count or 0.0) / 2**20 for kind, count in zip(MEMORY_KINDS, held, strict=True)]


def _stack(
    axes: "Axes",
    table: list[list[float]],
    names: "tuple[str, ...] | list[str]",
    colours: dict[str, int],
    height: float,
    offset: float,
    alpha: float = 1.0,
) -> None:
    left = [0.0] * len(table)
    for column, name in enumerate(names):
        widths = [row[column] for row in table]
        colour = LIGHT[colours[name.removeprefix("host_")]]
        hatched = name.startswith("host_")
        axes.barh(
            [row + offset for row in range(len(table))], widths, left=left, height=height, alpha=alpha,
            color="white" if hatched else colour, edgecolor=colour if hatched else "none",
            hatch="////" if hatched else None, label=name.replace("_", " ") if alpha == 1.0 else None,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]


def _rows(runs: list[RunData], title: str, each: float = 0.27) -> "tuple[Figure, Axes]":
    shown_runs = runs[:ROWS]
    figure, axes = _figure(6.4, 1.3 + each * len(shown_runs))
    axes.set_yticks(range(len(shown_runs)), [_label(run) for run in shown_runs])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_ylim(len(shown_runs) - 0.4, -0.6)
    axes.set_xlabel(title)
    axes.grid(True, axis="x", color="#e6eaee", linewidth=0.6)
    if len(runs) > ROWS:
        axes.set_title(f"the first {ROWS} of {len(runs)} runs", fontsize=9, loc="left")
    return figure, axes


def _kinds_legend(axes: "Axes") -> None:
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _label(run: RunData) -> str:
    name = shown(run.name)
    name = name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"
    status = run.summary.get("status")
    notes = [
        *(["modelled"] if is_modelled(run) else []),
        *([shown(status)] if status not in ("completed", None) else []),
    ]
    return f"{name} ({', '.join(notes)})" if notes else name
