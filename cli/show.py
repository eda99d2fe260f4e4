"""`paceline show`: one run in the terminal."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..conf.errors import ConfigError
from .completion import complete_source
from .find import find
from .options import AllowModule, ConfigDir
from .output import aligned, note, note_all, note_damage, results_alone, shortest, show, terminal_width

if TYPE_CHECKING:
    from ..tracking.run_data import RunData

NARROWEST, WIDEST = 10, 60  # characters of a curve
FILES = (
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "summary.json",
    "prediction.json",
    "trial.json",
    "model.safetensors",
)


@results_alone()
def show_one(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="A run, SWEEP/RUN, a directory, or a W&B folder of one run.",
            show_default=False,
            autocompletion=complete_source,
        ),
    ] = None,
    format: Annotated[
        Literal["text", "json", "csv"],
        typer.Option(help="json holds the curves' points, too; csv is the row of compare, under its names."),
    ] = "text",
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw curves without block characters.")] = False,
    command: Annotated[
        bool, typer.Option("--command", help="Print the one line that repeats the run, and nothing else.")
    ] = False,
    collective: Annotated[str | None, typer.Option("--collective", hidden=True)] = None,
    html: Annotated[Path | None, typer.Option("--html", hidden=True)] = None,
    svg: Annotated[Path | None, typer.Option("--svg", hidden=True)] = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
) -> None:
    """Show one run: its result, its configuration's differences from the defaults, its curves, where its files are.

    \b
    paceline show first-asp
    paceline show my-sweep/0003-seed-1
    paceline show first-asp --format json
    paceline show first-asp --command
    """
    if collective is not None:
        from .explain import explain_choice

        choice, overrides = f"collective={collective}", run or []
        note(f"--collective: is a part of explain now. Write: paceline explain {shlex.join([choice, *overrides])}")
        explain_choice(choice, overrides, config_dir, tuple(allow_module or ()), format == "json", html, svg)
        return
    _check_alone(run, {"--html": html, "--svg": svg, "--config-dir": config_dir, "--allow-module": allow_module})
    assert run is not None
    if command:
        _show_command(run[0])
    elif format == "csv":
        _show_row(run[0])
    else:
        _show_run(run[0], format == "json", ascii)


def _check_alone(runs: list[str] | None, options: dict[str, object]) -> None:
    """One run, and nothing that is a choice's. Raises RunNameError."""
    from ..tracking.errors import RunNameError

    if not runs or len(runs) > 1:
        rule = "show takes one run; paceline compare takes any number of runs"
        raise RunNameError(f"{' '.join(runs)}: {rule}" if runs else rule)
    for option, value in options.items():
        if value:
            raise RunNameError(f"{option}: show takes none. Choose paceline explain GROUP=CHOICE {option} ...")


def _show_command(name: str) -> None:
    """Raises RunNameError where the run's configuration is not known, or not one of this version's."""
    from ..engine.config.repeat import command_of
    from ..tracking.errors import RunNameError

    run = find(name)
    note_damage([run])
    if _is_of_script(run):
        raise RunNameError(f"{name}: is a run of a script, whose arguments are not recorded. Choose paceline launch.")
    try:
        line, notes = command_of(run.config)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunNameError(f"{name}: its configuration is not one that this version can compose ({error})") from None
    note_all(notes)
    show(line)


def _show_row(name: str) -> None:
    """Two lines: names, and values. Raises CorruptRunError where the summary is damaged."""
    from ..tracking.compare import ComparisonRequest, render, table
    from ..tracking.sources import check

    data = find(name)
    note_damage([data])
    if data.path is not None:
        check(data)
    rows, _ = table([data], ComparisonRequest())
    show(render(rows, "csv"))


def _show_run(run: str, as_json: bool, ascii: bool) -> None:
    data = find(run)
    note_damage([data])
    if as_json:
        show(json.dumps(_as_json(data), indent=2))
    else:
        _show_text(data, ascii)
    if data.summary.get("status") == "damaged":
        from ..tracking.errors import CorruptRunError

        raise CorruptRunError(str(data.summary.get("reason")))


def _show_text(data: "RunData", ascii: bool) -> None:
    blocks = not ascii and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    overrides = _overrides(data)
    paragraphs = [
        _result(data),
        _configuration(data, overrides),
        _curves(data, blocks),
        _predicted(data),
        _labels(data),
        _files(data, overrides),
    ]
    show("\n".join(lines + "\n" for lines in paragraphs if lines))


def _result(run: "RunData") -> str:
    from ..tracking.compare import rows
    from ..tracking.rendering import facts
    from ..tracking.visible import visible

    (row,) = rows([run])
    lines = aligned([list(fact) for fact in facts(row)], numbers_from=2)
    if run.summary.get("reason"):
        said = [visible(line) for line in str(run.summary["reason"]).splitlines() if line.strip()]
        lines += ["", *(f"{'why: ' if i == 0 else '     '}{line}" for i, line in enumerate(said))]
    return "\n".join(lines)


def _overrides(run: "RunData") -> list[str] | None:
    """Returns the run's differences from the defaults; None where its configuration is not ours, or not known."""
    from ..engine.config.overrides import overrides_of

    try:
        return overrides_of(run.config)
    except (ConfigError, KeyError, TypeError, AttributeError):
        return None


def _configuration(run: "RunData", overrides: list[str] | None) -> str:
    from ..engine.config.repeat import quoted
    from ..tracking.selection import configured
    from ..tracking.visible import visible

    if overrides is not None and _is_of_script(run):
        groups = ("model", "data", "optimizer")  # the script's own objects
        kept = [text for text in overrides if text.partition("=")[0] not in groups]
        return visible(f"of a script, with: {quoted(kept)}")
    if overrides is not None:
        return visible(f"as typed: {_command(run, overrides)}")
    chosen = [[f"  {key}", str(value)] for key, value in sorted(configured(run).items())]
    lines = [visible(line) for line in aligned(chosen, numbers_from=2)] if chosen else []
    return "\n".join(["configuration, which is not one of this version's:", *lines] if lines else [])


def _command(run: "RunData", overrides: list[str]) -> str:
    from ..engine.config.repeat import allowing, packages_of, quoted

    return quoted(["paceline", "train", *overrides, *allowing(packages_of(run.config))])


def _curves(run: "RunData", blocks: bool) -> str:
    from ..tracking.sparkline import ASCII, BLOCKS, curves, sparkline

    drawn: list[list[str]] = []
    width = min(max((terminal_width() or 100) - 40, NARROWEST), WIDEST)
    texts = {"loss": "{:.4g}", "accuracy": "{:.2%}", "r2": "{:.4f}", "step time": "{:.3g} s"}
    for name, curve in curves(run.records).items():
        values = [value for _, value in curve]
        first, last, low, high = (
            texts[name].format(value) for value in (values[0], values[-1], min(values), max(values))
        )
        line = sparkline(curve, width, BLOCKS if blocks else ASCII)
        drawn.append([name, line, f"{first} to {last}", f"lowest {low}, highest {high}"])
    if not drawn:
        return ""
    return "\n".join(aligned(drawn, numbers_from=4))


def _predicted(run: "RunData") -> str:
    """Bytes of a worker and step, and peak bytes of the largest worker by kind."""
    from ..tracking.compare import human_bytes
    from ..tracking.values import plain_number

    table = [
        [kind, *("-" if value is None else human_bytes(value) for value in values)]
        for kind, values in _pairs(run).items()
    ]
    estimated, median = (
        plain_number(run.summary.get("predicted_step_ms")),
        _section(run.summary, "step_time").get("median"),
    )
    if estimated is not None:
        measured = plain_number(median)
        table.append(["step", f"{estimated:,.3g} ms", "-" if measured is None else f"{1e3 * measured:,.3g} ms"])
    return "\n".join(aligned([["", "predicted", "measured"], *table], numbers_from=1)) if table else ""


def _pairs(run: "RunData") -> dict[str, tuple[float | None, float | None]]:
    """Returns predicted and measured values, in bytes."""
    from ..tracking.values import plain_number

    predicted, memory, wire = (_section(run.summary, key) for key in ("predicted", "memory", "wire"))
    if not predicted:
        return {}
    estimated = _section(predicted, "memory")
    pairs = {kind: (plain_number(estimated.get(kind)), plain_number(memory.get(kind))) for kind in estimated}
    return {
        "sent/step": (plain_number(predicted.get("bytes_per_step")), plain_number(wire.get("bytes_per_step"))),
        **pairs,
    }


def _labels(run: "RunData") -> str:
    """Returns a table of the samples of each label on each replica, if replicas own samples."""
    from ..tracking.figures.facts import labels_of

    told = labels_of(run.summary)
    if not told:
        return ""
    rows = [[f"replica {k}", *map(str, row), str(sum(row))] for k, row in enumerate(told)]
    head = ["samples by label", *map(str, range(len(told[0]))), "all"]
    return "\n".join(aligned([head, *rows], numbers_from=1))


def _files(run: "RunData", overrides: list[str] | None) -> str:
    if run.path is None:
        return ""
    lines = [["files", str(shortest(run.path))]]
    lines += [["", name] for name in FILES if (run.path / name).is_file()]
    checkpoints = _checkpoints(run.path)
    if checkpoints:
        lines.append(["", f"checkpoints/ ({', '.join(checkpoints)})"])
    lines += [["", f"{name}/"] for name in ("logs", "wandb") if any((run.path / name).glob("*"))]
    how = ("under way", _watching(run)) if _is_live(run) else _go_on(run, overrides)
    if how is not None:
        lines.append(["", ""])
        lines.append(list(how))
    return "\n".join(aligned(lines, numbers_from=2))


def _go_on(run: "RunData", overrides: list[str] | None) -> tuple[str, str] | None:
    """Returns the command that resumes the run, or repeats it if it kept no checkpoint; None of a run under way."""
    from ..engine.config.repeat import allowing, packages_of
    from ..tracking.run_data import resuming
    from ..tracking.visible import visible

    if run.path is None or _is_live(run):
        return None
    if run.swept is not None:
        return "its sweep", visible(resuming(run.path.parent, run.swept.sweep))
    if _is_of_script(run):
        ends = run.summary.get("status") == "completed" or not _checkpoints(run.path)
        workers = run.summary.get("workers", 1)
        return None if ends else ("go on", f"paceline launch --resume --workers {workers} SCRIPT")
    if overrides is not None and _checkpoints(run.path):
        counted = "epochs" if run.config.get("steps") is None else "steps"
        more = f" {counted}=MORE" if run.summary.get("status") == "completed" else ""
        allow = "".join(f" {word}" for word in allowing(packages_of(run.config)))
        return "go on", visible(f"paceline train --resume {shlex.quote(_place(run))}{allow}{more}")
    return None if overrides is None else ("repeat", visible(_command(run, overrides)))


def _watching(run: "RunData") -> str:
    from ..tracking.visible import visible

    return visible(f"paceline watch {shlex.quote(_place(run))}")


def _place(run: "RunData") -> str:
    """Returns the run's name, or its directory where that is not under runs/."""
    from ..engine import ROOT

    assert run.path is not None
    return run.name if run.path.parent == ROOT.absolute() else str(shortest(run.path))


def _is_live(run: "RunData") -> bool:
    """Returns whether the run goes on, or a scheduler has it, or its sweep's sweeper is at work."""
    from ..tracking.alive import is_held
    from ..tracking.run_directory import RunDirectory
    from ..tracking.state import state_of
    from ..tracking.stored import LOCK

    if run.path is None:
        return False
    sweeps = run.swept is not None and is_held(run.path.parent / LOCK)
    return sweeps or state_of(RunDirectory(run.path))[0] in ("running", "submitted")


def _is_of_script(run: "RunData") -> bool:
    from ..tracking.run_directory import RunDirectory

    return run.path is not None and RunDirectory(run.path).is_of_script()


def _checkpoints(path: Path) -> list[str]:
    from ..tracking.checkpoints import steps_of

    return [each.name for each in steps_of(path / "checkpoints")]


def _as_json(run: "RunData") -> dict[str, Any]:
    from ..tracking.compare import rows
    from ..tracking.sparkline import curves
    from ..tracking.values import finite

    overrides = _overrides(run)
    how = _go_on(run, overrides)
    return finite(
        {
            "result": rows([run])[0],
            "overrides": overrides,
            "config": run.config,
            "curves": {name: [list(point) for point in curve] for name, curve in curves(run.records).items()},
            "predicted": {kind: {"predicted": a, "measured": b} for kind, (a, b) in _pairs(run).items()},
            "path": None if run.path is None else str(run.path),
            "go_on": how[1] if how else None,
        }
    )


def _section(summary: dict[str, Any], key: str) -> dict[str, Any]:
    section = summary.get(key)
    return section if isinstance(section, dict) else {}
