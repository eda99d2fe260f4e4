"""`paceline watch`: a run, or a sweep, that goes on, from another terminal."""

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .completion import complete_source
from .output import note, shortest, show, show_json, terminal_width

if TYPE_CHECKING:
    from ..tracking.run_directory import RunDirectory

LOOK = 0.5  # seconds between looks at whether the run goes on
SURE = (
    1.0  # seconds without a launcher, after which it has died: a new run is there a moment before its launcher's lock
)
STATUSES = {"running": 0, "submitted": 0, "completed": 0, "pruned": 0, "diverged": 6, "damaged": 7, "interrupted": 130}
FAILED = 4  # all others
Format = Annotated[Literal["text", "json"], typer.Option(help="With --once: json is one document.")]


def watch(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run, SWEEP/RUN, a sweep, or the directory of one.", autocompletion=complete_source
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Say how it is now, and end.")] = False,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Draw on a terminal, or print lines.")] = True,
    format: Format = "text",
) -> None:
    """Follow a run from another terminal, until it ends: loss, throughput, and how far each worker is.

    Only the run's directory is read, and the scheduler that has the run is asked. The exit status is that of the run:
    0 completed (or, with --once, under way), 4 failed or died (killed, so that it could not say so), 6 diverged, 7
    its summary is damaged, 130 stopped early; 2 where there is no such run.
    Of a sweep it tells which runs have begun and ended; 4: some failed, 130: it was interrupted before all had ended.

    \b
    paceline watch first-asp
    paceline watch first-asp --once
    paceline watch my-sweep
    paceline watch my-sweep/0003-asp-s1
    """
    from ..engine import ROOT
    from ..tracking.errors import RunNameError
    from ..tracking.run_directory import RunDirectory
    from ..tracking.sources import sweep_at

    if format == "json" and not once:
        raise RunNameError("--format json: goes with --once; what a run writes as it goes is runs/RUN/metrics.jsonl")
    try:
        if (sweep := sweep_at(run, ROOT)) is not None:
            from .watch_sweep import watch_sweep

            raise typer.Exit(watch_sweep(sweep, once, format == "json"))
        directory = RunDirectory.open(ROOT, run)
        state = _once(directory, format == "json") if once else _follow(directory, live)
    except KeyboardInterrupt:
        note("stopped watching; what was watched goes on")
        raise typer.Exit(130) from None
    if code := STATUSES.get(state, FAILED):
        raise typer.Exit(code)


def _once(directory: "RunDirectory", as_json: bool) -> str:
    from rich.console import Console

    from ..tracking.view import View

    state, why = _asked(directory)
    view = View(directory.path)
    for record in directory.records():
        view.record(record)
    if state == "running":
        view.look()
    if as_json:
        show_json({"run": directory.name, "state": state, "why": why, **view.plain()})
        return state
    width = terminal_width() or 100
    encoding = sys.stdout.encoding or "utf-8"
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as drawn:
        console.print(view.draw(width, encoding.lower().startswith("utf"), encoding))
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    show("\n".join([*lines, _said(state, why)]))
    return state


def _follow(directory: "RunDirectory", live: bool) -> str:
    from ..tracking.run_directory import follow
    from ..tracking.shown_progress import progress

    sink, over = progress(directory.path, sys.stdout, plain=not live), threading.Event()
    ended: list[tuple[str, str]] = []
    failed: list[Exception] = []

    def look() -> None:
        from ..engine.jobs.asking import JobWatch

        job = JobWatch(directory)
        try:
            while (found := _state(directory))[0] == "running" or (found[0] == "submitted" and job.goes_on()):
                time.sleep(LOOK)
            if found[0] == "submitted" and (found := _state(directory))[0] == "submitted":
                found = "died", f"{found[1]} is over and did not say how"
            ended.append(found)
        except Exception as error:  # the thread that follows raises it
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=look, name="paceline-watch", daemon=True).start()
    try:
        unknown = 0
        for record in follow(directory.metrics, over):
            try:
                sink.record(record)
            except (LookupError, TypeError, ValueError, AttributeError):  # a file may hold any record
                unknown += 1
    finally:
        sink.close(None)
    if unknown:
        note(f"{shortest(directory.metrics)}: {unknown} records are no records of this version, and are not shown")
    if failed:
        raise failed[0]
    state, why = ended[0]
    note(_said(state, why))
    return state


def _asked(directory: "RunDirectory") -> tuple[str, str]:
    """Returns the run's state and the reason for it; of a run that a scheduler has, by the scheduler's answer."""
    from ..conf.errors import ConfigError
    from ..engine.base.errors import CorruptCheckpointError
    from ..engine.jobs.asking import JobWatch, job_of
    from ..tracking.errors import CorruptRunError

    state, why = _state(directory)
    if state != "submitted":
        return state, why
    try:
        watched = JobWatch(directory)
        while watched.goes_on():
            job = job_of(directory)
            if job is None or job.state is None or job.state.phase != "over":
                return state, why if job is None else f"{why}, {job.word}"
            time.sleep(LOOK)
    except (ConfigError, CorruptRunError, CorruptCheckpointError):  # nobody can be asked
        return state, why
    found = _state(directory)
    return ("died", f"{why} is over and did not say how") if found[0] == "submitted" else found


def _said(state: str, why: str) -> str:
    return f"{state}: {why}" if why else state


def _state(directory: "RunDirectory") -> tuple[str, str]:
    """Returns the run's state and the reason for it. A run counts as dead only after it has been watched for a
    while.
    """
    from ..tracking.state import state_of

    until = time.monotonic() + SURE
    while (found := state_of(directory))[0] == "died" and time.monotonic() < until:
        time.sleep(SURE / 10)
    return found
