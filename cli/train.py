"""`paceline train`: one run, from its overrides to a result row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .agent import from_agent
from .completion import complete_checkpoint
from .options import AllowModule, Config, ConfigDir, Format, Overrides, with_config
from .output import note, note_all, note_disturbed, results_alone, shortest, show, show_json, terminal_width
from .plan import raw_checked
from .step_time import lack_of_memory

if TYPE_CHECKING:
    from ..engine import Result
    from ..engine.planning.planned import Plan

# -- options

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check all that can be checked without data, and train nothing.")
]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The run's directory: runs/NAME. Default: made from the choices and the time."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN[@STEP]",
        help="Go on with a run from its last checkpoint, or from the one named.",
        autocompletion=complete_checkpoint,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write every worker's compute, communication and waiting to FILE, for ui.perfetto.dev.",
        show_default=False,
    ),
]
TrustCheckpoint = Annotated[
    bool, typer.Option("--trust-checkpoint", help="Unpickle the DeepSpeed checkpoint that weights=DIR names.")
]
Submitted = Annotated[Path | None, typer.Option("--submitted", hidden=True)]
Print = Annotated[
    bool, typer.Option("--print", help="Check as --dry-run does, and print what a scheduler would be given, alone.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Of a run that a scheduler has: return once it is submitted.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Draw progress on a terminal, or print it in lines.")]


@results_alone()
def train(
    overrides: Overrides = None,
    dry_run: DryRun = False,
    config: Config = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    name: Name = None,
    resume: Resume = None,
    trace: Trace = None,
    trust_checkpoint: TrustCheckpoint = False,
    print_submission: Print = False,
    detach: Detach = False,
    submitted: Submitted = None,
    live: Live = True,
    format: Format = "table",
) -> None:
    """Train a model; print the result row.

    \b
    paceline train                                  the defaults: an MLP on digits, two workers
    paceline train sync=asp hardware.workers=4      another sync mode, more workers
    paceline train strategy=pipeline strategy.stages=4 model.hidden=[64,64,64]
    paceline train experiment=fashion_cnn epochs=1  a preset, shortened
    paceline train sync=asp --dry-run               is the configuration good?
    paceline train --config runs/NAME/config.yaml seed=1   as a run was, with another seed
    paceline train --resume NAME epochs=10          go on with a run
    paceline train sync=asp --trace trace.json      who waits for whom, and when?
    torchrun --nproc-per-node 4 --no-python paceline train
    paceline train launcher=slurm launcher.nodes=2 launcher.time=30m

    The choices: paceline list. What would run: paceline plan.
    """
    from .. import engine

    if config is not None and resume is not None:
        raise ConfigError(f"--config {config}: a resumed run has its own; --resume {resume} goes on as it began")
    allowed = allow_module or []
    if submitted is not None:
        engine.take_up(submitted, tuple(allowed))
        return
    chosen, blamed = with_config(config, from_agent(overrides or []), config_dir)
    if dry_run or print_submission:
        from ..engine.planning.process_memory import check_process, lack_here
        from ..engine.predict.device_use import device_use_of

        with blamed:
            prepared = engine.prepare(
                chosen, config_dir, allowed, name, resume, trace=trace, trust_checkpoint=trust_checkpoint
            )
            planned, absent = prepared.plan(), prepared.absent()
            check_process(planned)
            prepared.check_can_go_on(planned)
        lacking = [lack for lack in (absent, lack_here(planned)) if lack]
        note_all([*planned.notes, *lacking, *lack_of_memory(device_use_of(planned))])
        submission = prepared.submission()
        if print_submission:
            if submission is None:
                raise ConfigError(f"--print: launcher={prepared.experiment.choice('launcher').name} submits nothing.")
            show(submission.rstrip())
        elif format == "json":
            show_json(raw_checked(prepared, planned) | ({} if submission is None else {"submission": submission}))
        else:
            show(_checked(planned) if submission is None else f"{_checked(planned)}\n\n{submission.rstrip()}")
        return
    with blamed:
        result = engine.run(
            chosen,
            config_dir=config_dir,
            allow_modules=allowed,
            name=name,
            resume=resume,
            trace=trace,
            trust_checkpoint=trust_checkpoint,
            plain=not live,
            detach=detach,
        )
    if result is not None:  # None: torchrun's workers that are not the chief
        _print_result(result, trace, format)


def _checked(plan: "Plan") -> str:
    from ..engine.planning.process_memory import said_of_process

    experiment, memory = plan.experiment, said_of_process(plan)
    steps = counted(plan.steps, "step") if plan.steps is not None else "as many steps as the data give"
    return (
        f"ok: {experiment.strategy.name} + {experiment.sync.name}, {experiment.model.name} on {experiment.data.name}, "
        f"workers: {plan.layout.workers}, {steps}; nothing was trained\n"
        f"data: {plan.contents.in_words()}" + (f"\nmemory: {memory}" if memory else "")
    )


def _unmeasured(summary: dict[str, Any]) -> str:
    """Says why a resumed run has no speed though it was long enough before."""
    resumed = summary.get("resumed_at")
    if not summary.get("too_short") or resumed is None:
        return ""
    made = summary["steps"] - resumed
    return (
        f"no speed is shown: it is measured of the {made:,} steps since step {resumed:,} alone, where the run went on "
        "(with other work beside it, or on another machine, the steps before have another speed), and these are too few"
    )


def _print_result(result: "Result", trace: Path | None, format: str) -> None:
    from ..tracking.compare import render, rows

    table = rows([result.summary])
    try:
        show(render(table, format, terminal_width()))
    finally:
        note_disturbed(table)
        if result.doubts:
            note(f"\nrobust accuracy may be too high, as gradients may be masked: {'; '.join(result.doubts)}")
        if (seconds := result.compile_s) is not None:
            note(f"\ncompiled in {seconds:.1f} s, which no throughput or step time counts")
        if unmeasured := _unmeasured(result.summary):
            note(f"\n{unmeasured}")
        note(f"\neverything of this run: {shortest(Path(result.path))}")
        if trace is not None:
            note(f"who waited for whom: {trace} (open it in ui.perfetto.dev)")
        note(f"compare it with another run: paceline compare {result.path.name} OTHER")
