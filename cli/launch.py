"""`paceline launch`: a script of one's own on several workers of this host."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..conf.errors import ConfigError
from .output import note

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def launch(
    ctx: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file that calls paceline.wrap.wrap.")],
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=4096, help="Processes to start.")] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of the script's name, from its last run.save().")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the script up to its wrap, say what it would train, and stop.")
    ] = False,
) -> None:
    """Run a script on several workers, by torchrun on this host; what follows SCRIPT is the script's own.

    The exit status is that of the worker that failed: 2 where wrap refused what the script asks for, and said so; 130
    after Ctrl-C, which stops all workers before the same step.

    \b
    paceline launch train.py                        two workers
    paceline launch --workers 4 train.py --lr 0.1   four, and an argument of the script's
    paceline launch --resume train.py               from its last checkpoint
    paceline launch --dry-run train.py              what it would train, on one process and without a step
    python train.py                                 one worker

    On several hosts torchrun does the same: torchrun --nnodes 2 ... train.py (docs/running.md).
    """
    from ..engine.base.started import DRY_RUN, RESUMES, was_started

    if not script.is_file():
        raise ConfigError(f"{script}: must be a Python file, and there is none")
    if was_started():
        raise ConfigError("launch: this process is one of torchrun's workers already; give the script to python")
    of_torchrun = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={workers}"]
    several = ["-P", "-m", "paceline.compat.torchrun", *of_torchrun]
    try:
        text = script.read_text(errors="replace")
    except OSError as error:
        raise ConfigError(f"{script}: cannot be read ({error.strerror})") from None
    if workers > 1 and not dry_run and "paceline" not in text:
        note(
            f"note: {script}: does not name paceline.wrap. If no module of it does, each of {workers} processes runs "
            "all of it by itself."
        )
    told = {RESUMES: "1"} if resume else {}
    if dry_run:
        several, told = ["-P", "-m", "paceline.wrap"], {**told, DRY_RUN: str(workers)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ.update(told)
    os.execv(sys.executable, [sys.executable, *several, str(script), *ctx.args])
