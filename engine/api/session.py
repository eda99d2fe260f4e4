"""One run, from what was prepared to its result.

preparing.py composes and checks it.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...conf.errors import ConfigError, check_options
from ...cost.devices import DEVICES
from ...tracking.alive import held
from ...tracking.environment import environment
from ...tracking.errors import CorruptRunError, StorageError
from ...tracking.job_files import forget_job, open_job
from ...tracking.mirror import Mirror, Sink
from ...tracking.records import End
from ...tracking.run_directory import RunDirectory, name_of
from ...tracking.shown_progress import progress
from ...tracking.sinks import sinks_from
from ...tracking.visible import visible
from ..base import ROOT
from ..base.errors import DivergedError, InterruptedRunError, MachineError, UntrainedError
from ..base.failures import exit_code_of
from ..base.signals import noted
from ..base.started import is_first, is_submitted, was_started
from ..config.experiment import Experiment
from ..config.settings import Settings
from ..config.stored import read_stored
from ..fabrics import fabric_of
from .preparing import Prepared, check_data, has_job, prepare
from .results import Result

if TYPE_CHECKING:
    from ...tasks.base import Data
    from ..launch.launcher import Stoppable
    from ..planning.planned import Plan


def make_ready(plan: "Plan", quiet: bool) -> None:
    """Prepares this host, once, for a strategy and for sums in shared memory, where that takes long."""
    from ...comm import native
    from ...strategies.core.protocols import MakesReady
    from ...tracking.moving_lines import MovingLines

    show = MovingLines()

    def say(text: str, moves: bool = False) -> None:
        if not quiet:
            show(text, moves)

    if isinstance(plan.strategy, MakesReady):
        plan.strategy.make_ready(say)
    fabric, size = fabric_of(plan.experiment), plan.layout.world_size
    one_host = fabric.hosts(plan.experiment.hardware, size) == (0,) * size
    if plan.device.type == "cpu" and size > 1 and (one_host or fabric.modelled):
        library, slower = "all_reduce", "workers add up in shared memory by torch, which is about three times slower"
        if fabric.modelled:
            library, slower = "links", "Python computes messages of the virtual cluster, which is slower"
        if why := native.why_not(library):
            say(f"note: no native code can be made here ({why}), so that {slower}; see paceline doctor")


def run(
    overrides: "Settings | Prepared" = (),
    *,
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    name: str | None = None,
    resume: str | None = None,
    root: Path | str | None = None,
    quiet: bool = False,
    trace: Path | str | None = None,
    trust_checkpoint: bool = False,
    plain: bool = False,
    detach: bool = False,
    **settings: Any,
) -> Result | None:
    """Train, as `paceline train` does; returns the result (None on torchrun's workers that are not the chief).

    `overrides`: the configuration in any form that settings.py knows, or what `prepare` returned, which has the other
    options already; `settings`: further keys of it: `run(sync="asp", hardware={"workers": 2})`. `root`: where run
    directories are made, by default in runs/, or as `prepare` was told. `quiet`: no progress on stderr; `plain`: in
    lines, on a terminal too. `trace`: a file to write every worker's compute, communication and waiting to at the end,
    for ui.perfetto.dev. `trust_checkpoint`: unpickle the DeepSpeed checkpoint that `weights` names. `detach`: return
    None once a scheduler has the run. Raises errors with an `exit_code` (docs/running.md, "How it fails").
    """
    check_options("a text, a Path or None", root=root)
    with noted():
        if isinstance(overrides, Prepared):
            if settings or allow_modules or trust_checkpoint or any((config_dir, name, resume, trace)):
                raise ConfigError(
                    "what engine.prepare returned is run as it is; give it these options, and run the rest"
                )
            prepared = overrides
        else:
            options = (config_dir, allow_modules, name, resume, root or ROOT, trace, trust_checkpoint)
            prepared = prepare(overrides, *options, **settings)
        plan = prepared.plan()
        if not quiet and is_first():
            for text in plan.notes:
                print(f"note: {text}", file=sys.stderr, flush=True)
        if detach and not fabric_of(prepared.experiment).submits:
            raise ConfigError(
                f"--detach: launcher={prepared.experiment.choice('launcher').name} starts workers of this command. "
                "Choose a scheduler: paceline list launcher."
            )
        return carry_out(prepared, plan, Path(root or prepared.root), quiet, plain=plain, detach=detach)


def _submit(
    prepared: Prepared,
    plan: "Plan",
    root: Path,
    quiet: bool,
    started: "Callable[[Stoppable], object]",
    opened: Callable[[RunDirectory], Sequence[Sink]],
    plain: bool,
    detach: bool,
) -> Result | None:
    """Submits a run, or finds its job if it has one, and follows it to its end; `detach`: without following.

    Raises what the run ended with.
    """
    from ..jobs import submission
    from ..jobs.array import InAllocation
    from ..jobs.making import scheduler_of

    scheduler, directory = scheduler_of(prepared.experiment, prepared.allowed), prepared.directory
    if prepared.in_allocation:
        scheduler = InAllocation()
    say = (lambda _: None) if quiet else _say
    note = None
    with nullcontext() if directory is None else submission.alone(directory):
        if directory is not None and not prepared.in_allocation:
            note = open_job(directory.path)
            if note is not None and prepared.stored is not None:  # another command has just submitted it
                raise has_job(directory, note)
        if directory is None or note is None:
            submission.check(prepared.experiment, scheduler)
            directory, _ = open_directory(prepared, plan, root, _check(prepared, plan), lambda _: None)
        sinks = [*([] if quiet else [progress(directory.path, plain=plain)]), *opened(directory)]
        if note is None:
            try:
                note = submission.submit(directory, prepared.experiment, scheduler, prepared.allowed)
            except BaseException:
                if prepared.directory is None:  # the name is free again
                    shutil.rmtree(directory.path, ignore_errors=True)
                raise
            say(f"run {directory.name}: submitted as job {note.id}")
    if detach:
        return None
    submission.follow_to_the_end(directory, scheduler, note, sinks, say, started)
    return result_of(directory)


def _check(prepared: Prepared, plan: "Plan") -> "Data":
    """Checks that this machine has what a run needs beside its plan. Raises `ConfigError`, `MachineError` or
    `MissingDataError`.
    """
    _check_machine(prepared, plan)
    data = check_data(prepared)
    prepared.check_can_go_on(plan, data)
    return data


def carry_out(
    prepared: Prepared,
    plan: "Plan",
    root: Path,
    quiet: bool,
    started: "Callable[[Stoppable], None]" = lambda _: None,
    opened: Callable[[RunDirectory], Sequence[Sink]] = lambda _: (),
    close: Callable[[Mirror], object] = Mirror.close,
    plain: bool = False,
    detach: bool = False,
) -> Result | None:
    """Train. `started` is given what stops the workers; `opened` the run's directory, and gives sinks beside the
    configured ones; `close` is given the mirror once training is over. None in a process that another one speaks for,
    and with `detach`, once a scheduler has the run. Raises what the run ended with; `UntrainedError` where it came to
    its end, and no step was taken.
    """
    from ..launch import launcher_on
    from ..launch.launching import launch

    if fabric_of(prepared.experiment).submits:
        return _trained(_submit(prepared, plan, root, quiet, started, opened, plain, detach))
    data = _check(prepared, plan)
    launcher, layout = launcher_on(fabric_of(prepared.experiment)), plan.layout
    tells = launcher.fabric.tells(layout)
    make_ready(plan, quiet or not tells)
    begun: list[RunDirectory] = []
    with ExitStack() as until_it_ends:

        def hold(run: RunDirectory) -> None:
            until_it_ends.enter_context(held(run.metrics))
            if run is prepared.directory and not was_started() and run.has_grown():
                raise ConfigError(f"--resume {run.name}: another command has just gone on with it. Repeat this one.")
            begun.append(run)

        memory = sum(plan.peak_memory().values())
        mirror = None
        try:
            directory, checkpoint = launcher.open(
                prepared.experiment, prepared.allowed, layout, lambda: open_directory(prepared, plan, root, data, hold)
            )
            if checkpoint != prepared.checkpoint:  # an earlier generation of torchrun's job made it
                prepared = replace(prepared, directory=directory, stored=read_stored(directory), checkpoint=checkpoint)
            mirror = start_mirror(prepared, directory, quiet, opened(directory), plain) if tells else None
            launch(launcher, prepared.assignment(directory, plan), layout, plan.survives, data.preload, started, memory)
        except BaseException as error:
            for run in begun:
                _note_the_end(run, error)
            raise
        finally:
            if mirror is not None:
                close(mirror)
    return _trained(result_of(directory) if tells else None)


def _trained(result: Result | None) -> Result | None:
    """Raises `UntrainedError` for a run that came to its end without a step."""
    if result is not None and result.status == "failed":
        raise UntrainedError(f"run {result.name}: {result.summary['reason']}")
    return result


def _say(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)


def _check_machine(prepared: Prepared, plan: "Plan") -> None:
    """A run needs the machine that its hardware describes. Raises `ConfigError` or `MachineError`."""
    import torch

    from ..features import adapting
    from ..features.compiling import check_machine
    from ..planning.process_memory import check_process, lack_here

    check_process(plan)
    if lack := lack_here(plan):
        raise ConfigError(
            f"model={plan.experiment.model.name}: {lack}. Choose a smaller model or a smaller batch_size, or a "
            "strategy that divides the model"
        )
    check_machine(prepared.experiment, plan.device)
    adapting.check_machine(prepared.experiment, prepared.allowed)
    machine = prepared.experiment.hardware.machine
    if machine is None or plan.device.type != "cuda":
        return
    if machine.accelerator is not None and not DEVICES[machine.accelerator].cuda:
        raise ConfigError(
            f"hardware.machine.accelerator={machine.accelerator}: paceline does not train on it. "
            "Choose hardware=local, or paceline plan, advise or cost."
        )
    here = fabric_of(prepared.experiment).workers_here(plan.layout)
    if here > machine.devices:
        raise ConfigError(
            f"hardware.workers={plan.layout.workers}: makes {here} workers on one host, and "
            f"hardware.machine has {machine.devices} devices, one for each; fewer workers, or torchrun on more hosts"
        )
    sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
    if len(sizes) < here or min(sizes) < 0.95 * machine.device_memory:
        found = f"{len(sizes)} of {min(sizes) / 2**30:.1f} GiB" if sizes else "none"
        raise MachineError(
            f"hardware.machine: says {machine.devices} CUDA devices of {machine.device_memory / 2**30:.1f} GiB, and "
            f"this host has {found}; hardware=local takes this machine as it is, paceline plan needs none"
        )


def _note_the_end(directory: RunDirectory, error: BaseException) -> None:
    """Records for `compare` why there is no summary, or that a worker failed which the others went on without."""
    status = "diverged" if exit_code_of(error) == DivergedError.exit_code else "failed"
    reason = str(error)
    if isinstance(error, InterruptedRunError):  # before a worker could write a summary
        status = "interrupted"
    elif not isinstance(error, Exception):  # Ctrl-C or SIGTERM
        status, reason = "interrupted", "was asked to stop, before its workers had started"
    with suppress(StorageError, CorruptRunError):
        summary = directory.read_summary()
        if summary is not None and status != "interrupted" and summary["status"] == "completed":
            directory.write_summary(summary | {"status": status, "reason": reason})
        elif summary is not None:
            return
        directory.add(End(status, reason))


def open_directory(
    prepared: Prepared, plan: "Plan", root: Path, data: "Data", hold: Callable[[RunDirectory], object]
) -> tuple[RunDirectory, Path | None]:
    """The run's directory, made and described, or that of the run to resume; and the checkpoint to go on from.

    `hold` is given it before anything of an earlier run changes.
    """
    from ..base.generations import note_job

    experiment, directory, checkpoint = prepared.experiment, prepared.directory, prepared.checkpoint
    if directory is None and experiment.name is not None:
        found = _of_this_job(root.absolute() / experiment.name, prepared.config, plan, data)
        directory, checkpoint = found or (None, None)
    begins = directory is None
    if directory is None:
        name = experiment.name
        directory = _unnamed(experiment, root) if name is None else RunDirectory.create(root, name)
        hold(directory)
        directory.write_environment(environment())
    else:
        hold(directory)
        if not was_started():
            forget_job(directory.path)  # it goes on here
        directory.forget_summary()
    if not is_submitted():  # else whoever submitted it wrote it
        # a resumed run's too: the next time it goes on with what was changed this time
        directory.write_config(yaml.safe_dump(prepared.config, sort_keys=False))
    if begins:
        note_job(directory)
        if experiment.weights is not None:
            from ..features.weights import convert

            convert(experiment, directory.path, plan.shapes, plan.added)
    return directory, checkpoint


def _of_this_job(path: Path, config: dict[str, Any], plan: "Plan", data: "Data") -> tuple[RunDirectory, Path] | None:
    """Returns the run of an earlier generation of torchrun's job, and the checkpoint to go on from; None without them.

    `config`: what is asked for now. Raises `ConfigError` where the run cannot go on, for instance with another number
    of workers.
    """
    from ..base.generations import last_checkpoint, left_at, say_it_goes_on
    from ..planning.resuming import check_can_go_on

    directory = left_at(path)
    if directory is None or (stored := read_stored(directory)).plain != config:
        return None
    if (checkpoint := last_checkpoint(directory)) is None:
        return None
    check_can_go_on(directory, stored, checkpoint, plan, data)
    say_it_goes_on(directory, checkpoint)
    return directory, checkpoint


def start_mirror(
    prepared: Prepared, directory: RunDirectory, quiet: bool, beside: Sequence[Sink] = (), plain: bool = False
) -> Mirror:
    config = prepared.experiment.model_dump()
    sinks = sinks_from(prepared.experiment.tracking, run=directory, config=config, quiet=quiet, plain=plain)
    return Mirror(directory, [*sinks, *beside])


def result_of(directory: RunDirectory) -> Result:
    summary = directory.read_summary()
    assert summary is not None, "the chief wrote no summary"
    return Result(directory.path, summary)


def _unnamed(experiment: Experiment, root: Path) -> RunDirectory:
    parts = [experiment.strategy.name, experiment.sync.name, experiment.model.name, experiment.data.name]
    return RunDirectory.create_unnamed(root, name_of("-".join([*parts, time.strftime("%m%d-%H%M%S")])))
