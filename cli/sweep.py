"""`paceline sweep`: many runs of one definition, side by side at the end."""

import shlex
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .completion import complete_override
from .options import AllowModule, ConfigDir, Format
from .output import (
    note,
    note_counted,
    note_disturbed,
    results_alone,
    shortest,
    show,
    show_json,
    terminal_width,
)
from .sweep_dry_run import show_points

if TYPE_CHECKING:
    from ..sweep.definition import Definition, EarlyTermination
    from ..sweep.directory import OpenSweep
    from ..sweep.study import TrialRecord
    from ..tracking.run_data import RunData
    from ..tracking.summaries import Row

Sampler = Literal["auto", "random", "tpe", "gp"]
Method = Literal["grid", "random", "bayes"]
FAILED = 4  # exit code of a sweep some of whose trials failed

# -- options

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SWEEP.yaml] OVERRIDES",
        help="A file in W&B's sweep schema, and overrides; several values of a key are swept: sync=bsp,ssp "
        "'sync.staleness=range(1,5)' 'optimizer.lr=tag(log,interval(0.001,0.1))'.",
        show_default=False,
        autocompletion=complete_override,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a sweep: only what is unfinished runs again.")]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The sweep's directory: runs/NAME. Default: the file's name, or the time."),
]
Seeds = Annotated[int | None, typer.Option(metavar="K", min=1, help="Run each point with K seeds.", show_default=False)]
Jobs = Annotated[int, typer.Option(metavar="J", min=1, help="Trials at once, as far as there are cores or GPUs.")]
Trials = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="At most so many points. With --resume: more for a search that has ended.",
        show_default=False,
    ),
]
MaxFailures = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Begin no trial after N failed.", show_default=False)
]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What counts: a column of the table. Default: accuracy.", show_default=False),
]
Minimize = Annotated[
    bool | None, typer.Option("--minimize/--maximize", help="Which way it is better.", show_default=False)
]
Prune = Annotated[
    int | None,
    typer.Option(
        metavar="MIN_ITER",
        min=1,
        help="Give up trials that are not among the best third after MIN_ITER, 3 MIN_ITER, ... evaluations (ASHA).",
        show_default=False,
    ),
]
Hyperband = Annotated[
    int | None,
    typer.Option(
        metavar="MAX_ITER",
        min=1,
        help="With --prune: deal the trials to brackets that begin to give up later and later (Hyperband).",
        show_default=False,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A database that several machines share: postgresql://user@host/name. Default: SQLite in runs/NAME.",
        show_default=False,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Return at once: a process that stays runs the trials.")]
Array = Annotated[
    int | None,
    typer.Option(
        metavar="J",
        min=1,
        help="With launcher=slurm: submit J sweepers as one job array, each of which trains one trial after another.",
        show_default=False,
    ),
]
Chosen = Annotated[
    Method | None, typer.Option(help="How points are chosen. Default: the file's; grid, or bayes with intervals.")
]
ArrayTask = Annotated[bool, typer.Option("--array-task", hidden=True)]


@results_alone()
def sweep(
    definition: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan every point and run none.")] = False,
    resume: Resume = False,
    name: Name = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    trials: Trials = None,
    max_failures: MaxFailures = None,
    method: Chosen = None,
    sampler: Annotated[Sampler, typer.Option(help="Optuna's sampler for bayes; auto: tpe.")] = "auto",
    metric: Metric = None,
    minimize: Minimize = None,
    prune: Prune = None,
    hyperband: Hyperband = None,
    storage: Storage = None,
    detach: Detach = False,
    array: Array = None,
    array_task: ArrayTask = False,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Format = "table",
) -> None:
    """Run many trials; print their table and write the report.

    \b
    paceline sweep sweeps/sync_modes.yaml                 a ready one
    paceline sweep sweeps/sync_modes.yaml --resume        go on after it was stopped or killed
    paceline sweep sync=bsp,ssp optimizer.lr=0.1,0.01     a grid, from the command line
    paceline sweep 'optimizer.lr=tag(log,interval(0.001,0.1))' --trials 20 --prune 1
    paceline sweep --resume --name search --trials 40     more trials for a search that has ended
    paceline sweep 'zip(optimizer.lr=0.1,0.2; batch_size=64,128)' sync=bsp,asp    values that go together
    paceline sweep sync=bsp,asp --seeds 3 --dry-run       what would run, and is it all good?

    The same file runs under W&B: wandb sweep FILE, then wandb agent. Exit status: 0 when all went well, 4 when a trial
    failed (the table says why), 2 for a bad definition, 3 for a full disk, or where a package or data are missing.
    """
    from ..engine import ROOT
    from ..sweep.define import define
    from ..sweep.directory import open_sweep
    from ..sweep.lacking import check_machine, has_more
    from ..tracking.run_directory import claimed

    words, wanted = definition or [], None
    if words or not resume:
        wanted = define(
            words,
            method=method,
            seeds=seeds,
            trials=trials,
            metric=metric,
            maximize=None if minimize is None else not minimize,
            early=_early(prune, hyperband),
            config_dir=str(config_dir.absolute()) if config_dir else None,
            allow_modules=tuple(allow_module or ()),
        )
        _check_sampler(sampler, wanted.method)
    else:
        _check_whole(method, seeds, metric, minimize, prune, hyperband, config_dir, allow_module)
    if dry_run:
        show_points(wanted, format, array, lambda: Path(ROOT) / (_name_of(name, words, resume) or _name_by_time()))
        return
    _check_array(array, jobs, storage, wanted)
    if wanted is not None and not resume and not array_task:
        check_machine(wanted)
    with claimed(Path(ROOT), _name_of(name, words, resume), _name_by_time()) as chosen:
        if array_task:
            _run_task(chosen, Path(ROOT), max_failures, sampler, format)
            return
        with open_sweep(chosen, wanted, Path(ROOT), resume, sampler, storage, trials=trials) as opened:
            if resume and has_more(opened.study):
                check_machine(opened.study.definition)
            if array is not None:
                _submit(chosen, opened, array, max_failures, sampler)
            elif not detach:
                _run(opened, chosen, jobs, max_failures, format)
    if array is None and detach:
        _leave(chosen, opened.directory, max_failures=max_failures, storage=storage, sampler=sampler, jobs=jobs)


def _run(opened: "OpenSweep", name: str, jobs: int, max_failures: int | None, format: str) -> None:
    from ..sweep.sweeper import Sweeper
    from .sweep_view import view

    with view(opened.study) as observer:
        sweeper = Sweeper(name, opened.study, opened.directory, jobs, max_failures, observer)
        try:
            sweeper.run()
        finally:
            notes = {text: len(trials) for text, trials in sweeper.notes.items()}
    note_counted(notes, "trials")
    if opened.study.in_array and (others := sum(done.state == "running" for done in opened.study.trials())):
        note(f"no trial is left; {others} run in other sweepers of the array, the last of which writes the report")
        return
    conclude(name, opened.directory, opened.study.trials(), opened.study.definition, format)


def _check_array(array: int | None, jobs: int, storage: str | None, definition: "Definition | None") -> None:
    """Checks what does not go with --array. Raises ConfigError or MachineError."""
    if array is None:
        return
    from ..sweep.array import job_array

    if jobs > 1:
        raise ConfigError(f"--jobs {jobs}: each sweeper of --array trains one trial at a time. Choose --array {jobs}.")
    if storage is not None:
        raise ConfigError("--storage: the sweepers of --array share the study in the sweep's folder. Leave it out.")
    if definition is not None:
        job_array(Path(), definition)


def _submit(name: str, opened: "OpenSweep", sweepers: int, max_failures: int | None, sampler: str) -> None:
    """Submits the sweepers of the sweep as a job array. The trials of an earlier array run again."""
    from ..sweep.array import job_array
    from ..sweep.directory import DATABASE
    from ..sweep.storage import turns_of
    from ..sweep.sweeper import Sweeper
    from .sweep_view import view

    array = job_array(opened.directory, opened.study.definition)
    turns_of(opened.directory / DATABASE).touch()
    with view(opened.study) as observer:
        Sweeper(name, opened.study, opened.directory, 1, None, observer).take_over()
    options = ["--sampler", sampler, *([] if max_failures is None else ["--max-failures", str(max_failures)])]
    id = array.submit(sweepers, options)
    note(f"sweep {name}: submitted as job array {id} of {sweepers} sweepers, whose words are in sweep-*.log")
    note(f"follow it: paceline watch {name}; stop it: scancel {id}")
    note(f"go on with it: paceline sweep --resume --name {name} --array {sweepers}")


def _run_task(name: str, root: Path, max_failures: int | None, sampler: Sampler, format: str) -> None:
    """Runs trials as one of an array's sweepers. The last of them writes the report."""
    from ..engine.base.errors import InterruptedRunError
    from ..engine.jobs.array import put_back_if_due, task
    from ..sweep.directory import open_sweep

    with open_sweep(name, None, root, True, sampler, task=task()) as opened:
        try:
            _run(opened, name, 1, max_failures, format)
        except InterruptedRunError as stopped:
            put_back_if_due(stopped.exit_code - 128)
            raise


def _leave(name: str, directory: Path, **options: str | int | None) -> None:
    """Has a process with a session of its own run the trials. `options`: of `sweep`; those of None are left out."""
    from ..tracking.run_data import resuming

    told = [(f"--{key.replace('_', '-')}", str(value)) for key, value in options.items() if value is not None]
    words = ["--name", name, *(word for each in told for word in each)]
    command = [sys.executable, "-P", "-m", "paceline.cli.main", "sweep", "--resume", *words]
    log = directory / "sweep.log"
    with log.open("ab") as file:
        sweeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    note(f"sweep {name}: process {sweeper.pid} runs the trials; its words: {shortest(log)}")
    note(f"stop it, with its trials saved: kill {sweeper.pid}; go on: {resuming(directory)}")


def _check_whole(*parts: object) -> None:
    """Checks that a sweep that goes on is given without parts of its definition. Raises ConfigError."""
    if any(part is not None for part in parts):
        raise ConfigError(
            "--resume: goes on with the sweep as it was defined. Choose its whole definition, or --trials alone."
        )


def _check_sampler(sampler: str, method: str) -> None:
    """Raises ConfigError for a sampler that a sweep would not ask."""
    if method != "bayes" and sampler not in ("auto", method):
        kind = "a grid" if method == "grid" else method
        raise ConfigError(
            f"--sampler {sampler}: goes with method=bayes, and this sweep is {kind}. Choose --method bayes --trials N, "
            "or leave --sampler out."
        )


def _early(prune: int | None, hyperband: int | None) -> "EarlyTermination | None":
    """Returns the rule of --prune and --hyperband. Raises ConfigError."""
    from ..sweep.definition import EarlyTermination

    if hyperband is not None and (prune is None or hyperband <= prune):
        raise ConfigError(f"--hyperband {hyperband}: goes with --prune MIN_ITER, and must be larger than that")
    return EarlyTermination(prune, 3, hyperband) if prune else None


def _name_of(name: str | None, words: list[str], resume: bool) -> str | None:
    """Returns `name`, or that of the definition's file; None: there is neither.

    Raises ConfigError where a resumed sweep has no name.
    """
    if name is not None:
        return name
    if words and "=" not in words[0]:
        return Path(words[0]).stem
    if resume:
        raise ConfigError("--resume: which sweep? Give its file, or --name NAME")
    return None


def _name_by_time() -> str:
    return time.strftime("sweep-%m%d-%H%M%S")


# -- the end


def conclude(name: str, directory: Path, trials: list["TrialRecord"], definition: "Definition", format: str) -> None:
    from ..tracking.compare import ComparisonRequest, render, table
    from ..tracking.figures.built import usable
    from ..tracking.figures.request import asked
    from ..tracking.judged import best_first
    from ..tracking.report import write_report
    from .sweep_outcome import outcome

    runs = runs_of(name, directory, trials)
    rows, _ = table(runs, ComparisonRequest())
    found = outcome(trials, definition, _more_seeds(name, directory))
    if format == "json":
        show_json(_raw(name, directory, trials, definition, runs, rows))
    else:
        show(render(rows, width=terminal_width()))
    note_disturbed(rows)
    report = directory / "report.html"
    figures = usable(runs, asked(definition.figures))
    write_report(runs, report, best_first(rows, definition.metric, runs), metric=definition.metric, requests=figures)
    failed = [done for done in trials if done.state == "failed"]
    if found:
        note(f"\n{found}")
    for done in failed:
        note(f"trial {done.trial.point} failed: {done.reason}")
    note(f"everything of this sweep: {shortest(directory)}; its report: {shortest(report)}")
    if failed:
        left = sum(done.state in ("waiting", "running") for done in trials)
        more = f", {left} were not run" if left else ""
        raise TrialsFailedError(f"{len(failed)} of {counted(len(trials), 'trial')} failed{more}")


def runs_of(name: str, directory: Path, trials: list["TrialRecord"]) -> "list[RunData]":
    """The runs of trials that ended: those of this directory, and what the study knows of those on other machines."""
    from ..tracking.run_data import RunData, Swept
    from ..tracking.sources import runs_of_sweep

    here = {run.name: run for run in runs_of_sweep(directory)}
    found: list[RunData] = []
    for done in trials:
        summaries = {str(summary.get("name")): summary for summary in done.summaries}
        for run in done.runs:
            if run in here:
                found.append(here[run])
            elif run in summaries:
                seed = int(summaries[run].get("seed", 0))
                swept = Swept.of_overrides(name, done.trial.point, seed, done.trial.chosen)
                found.append(RunData(run, summaries[run], {}, [], None, swept))
    return found


def _raw(
    name: str,
    directory: Path,
    trials: list["TrialRecord"],
    definition: "Definition",
    runs: "list[RunData]",
    table: "list[Row]",
) -> dict[str, Any]:
    """The closing table (seeds together), who is first, and every trial with the rows of its runs."""
    from ..tracking.compare import rows
    from .sweep_outcome import ranking

    of_runs = {str(row["run"]): row for row in rows(runs)}
    return {
        "sweep": name,
        "path": str(directory),
        "metric": definition.metric,
        "goal": "maximize" if definition.maximize else "minimize",
        "table": table,
        "ranking": ranking(trials, definition),
        "trials": [
            {
                "point": done.trial.point,
                "parameters": done.trial.chosen,
                "seeds": done.trial.seeds,
                "state": done.state,
                "value": done.value,
                "exit_code": done.exit_code,
                "why": done.reason or None,
                "seconds": done.seconds,
                "runs": [of_runs.get(run, {"run": run}) for run in done.runs],
            }
            for done in trials
        ],
    }


class TrialsFailedError(Exception):
    exit_code = FAILED


def _more_seeds(name: str, directory: Path) -> str:
    """The command, under a name that is free: a sweep goes on as it was defined."""
    from ..sweep.directory import FILE

    names = (f"{name[:50]}-seeds{i or ''}" for i in count())
    free = next(each for each in names if not (directory.parent / each).exists())
    return f"paceline sweep {shlex.quote(str(shortest(directory / FILE)))} --seeds 3 --name {free}"
