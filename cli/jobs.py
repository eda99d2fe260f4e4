"""`paceline jobs`, `paceline logs` and `paceline cancel`: runs that a scheduler has, from any host that sees them."""

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..conf.errors import ConfigError
from .completion import complete_source
from .options import AllowModule
from .output import aligned, note, show, show_json

PAUSE = 0.5  # seconds between looks at growing logs
LONGEST = 2**20  # bytes of a log's line that are printed as one

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run.", autocompletion=complete_source)]


def jobs(
    allow_module: AllowModule = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="json: one document.")] = "table",
) -> None:
    """List the runs that were submitted to a scheduler, and the state of each.

    \b
    paceline jobs
    paceline watch RUN                        its progress
    paceline logs RUN --follow                what its workers print
    paceline cancel RUN                       save and stop
    """
    from ..engine import ROOT
    from ..engine.jobs.asking import jobs_under

    found = jobs_under(Path(ROOT), tuple(allow_module or ()))
    if format == "json":
        show_json(
            [
                {"run": job.run, "launcher": job.note.launcher, "job": job.note.id, "state": job.word}
                | {"submitted": job.note.submitted, "host": job.note.host}
                for job in found
            ]
        )
    elif found:
        head = ["run", "launcher", "job", "submitted", "state"]
        lines = [[each.run, each.note.launcher, each.note.id, each.note.submitted, each.word] for each in found]
        show("\n".join(aligned([head, *lines], numbers_from=len(head))))
    if not found:
        note(f"no run under {ROOT} was submitted. Submit one: paceline train launcher=slurm")


def logs(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    worker: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Print the log of this worker or server alone.")
    ] = None,
) -> None:
    """Print what the workers of a run have printed, over all of its restarts.

    \b
    paceline logs first-asp
    paceline logs first-asp --worker 1 --follow
    """
    from ..engine import ROOT
    from ..engine.jobs.asking import JobWatch
    from ..tracking.run_directory import RunDirectory
    from ..tracking.state import state_of

    directory = RunDirectory.open(ROOT, run)
    folder = directory.path / "logs"
    if worker is not None and not _log(folder, worker).exists() and not follow:
        numbers = (path.stem.removeprefix("worker-") for path in folder.glob("worker-*.log"))
        there = [int(number) for number in numbers if number.isdecimal()]
        choose = f"Choose one of 0 to {max(there)}." if there else "None has begun."
        raise ConfigError(f"--worker {worker}: run {directory.name} has no log of it. {choose}")
    read: dict[Path, int] = {}
    job = JobWatch(directory)
    while True:
        over = not follow or not (
            (state := state_of(directory)[0]) == "running" or (state == "submitted" and job.goes_on())
        )
        files = sorted(folder.glob("*.log")) if worker is None else [_log(folder, worker)]
        for path in files:
            _print_from(path, read, several=worker is None)
        if over:
            return
        time.sleep(PAUSE)


def _log(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker:03d}.log"


def _print_from(path: Path, read: dict[Path, int], several: bool) -> None:
    """Print the whole lines that were added since the last look."""
    from ..tracking.files import UnusableFileError, open_regular

    prefix = f"{path.stem}: " if several else ""
    try:
        opened = open_regular(path)
    except (OSError, UnusableFileError):
        return
    with opened as file:
        file.seek(read.get(path, 0))
        while line := file.readline(LONGEST):
            if not line.endswith(b"\n") and len(line) < LONGEST:  # it is being written
                break
            read[path] = read.get(path, 0) + len(line)
            for piece in line.decode(errors="replace").splitlines():
                show(prefix + piece)
    sys.stdout.flush()


def cancel(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="End the workers at once; nothing is saved.")] = False,
    allow_module: AllowModule = None,
) -> None:
    """Stop a run that a scheduler has: its workers save a checkpoint first, and are not started again.

    \b
    paceline cancel far
    paceline train --resume far               go on with it
    """
    from ..engine import ROOT
    from ..engine.jobs.asking import cancel as cancel_job
    from ..tracking.run_directory import RunDirectory

    directory = RunDirectory.open(ROOT, run)
    note(f"run {directory.name}: {cancel_job(directory, now, tuple(allow_module or ()))}")
