"""One run from its overrides to its result.

Torch is imported once the configuration has been composed: a misspelt name is refused in a fraction of a second.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...conf.errors import ConfigError
from ...cost.devices import DEVICES
from ...tracking.alive import held
from ...tracking.environment import environment
from ...tracking.errors import StorageError
from ...tracking.job_files import forget_job, open_job
from ...tracking.mirror import Mirror, Sink
from ...tracking.records import End
from ...tracking.redact import redact
from ...tracking.run_directory import SWEEP_NOTE, RunDirectory, name_of
from ...tracking.shown_progress import progress
from ...tracking.sinks import check as check_tracking
from ...tracking.sinks import sinks_from
from ...tracking.visible import visible
from ..base import ROOT
from ..base.errors import DivergedError, InterruptedRunError, MachineError, UntrainedError
from ..base.failures import exit_code_of
from ..base.signals import noted
from ..base.started import is_first, is_submitted, was_started
from ..config.compose import compose, override_stored
from ..config.experiment import Experiment
from ..config.settings import Settings, asked
from ..config.stored import StoredConfig, identity, read_stored
from ..fabrics import fabric_of
from .results import Result

if TYPE_CHECKING:
    from ...cost.predicted import PredictedStep
    from ...tasks.base import Data
    from ...tasks.first_rows import FirstRows
    from ..fabrics.assignment import Assignment
    from ..launch.launcher import Stoppable
    from ..planning.planned import Plan
    from ..predict.fit import Fit
    from ..predict.timetable import Timetable


@dataclass(frozen=True)
class Prepared:
    """A checked experiment; for a resumed run, where it goes on and as what it was stored; the file for a trace."""

    experiment: Experiment
    allowed: tuple[str, ...]
    directory: RunDirectory | None
    stored: StoredConfig | None
    checkpoint: Path | None
    trace: Path | None
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of its workers; None: as it is here

    @property
    def config(self) -> dict[str, Any]:
        """Returns the contents of config.yaml while it runs."""
        now = redact(self.experiment.model_dump())
        return now if self.stored is None else self.stored.changed_to(now)

    def assignment(self, directory: RunDirectory, plan: "Plan") -> "Assignment":
        """Returns the message for each of its workers."""
        from ..base.checkpoint import step_of
        from ..fabrics.assignment import Assignment

        draws = self.trace is not None and "stage" in plan.layout.mesh.axes
        timetable = self.timetable() if draws else None
        predicted = plan.predicted(0 if self.checkpoint is None else step_of(self.checkpoint))
        if (step := self.prediction(plan)) is not None:
            predicted = replace(predicted, step_ms=1e3 * step.seconds)
            if fabric_of(self.experiment).tells(plan.layout):
                directory.write_prediction(step.record())
        return Assignment(
            self.experiment,
            directory.path,
            self.allowed,
            identity(self.config),
            predicted,
            self.checkpoint,
            self.trace,
            None if timetable is None else timetable.as_dict(),
            devices=self.devices,
        )

    def plan(self) -> "Plan":
        from ..planning.make_plan import make_plan

        plan = make_plan(self.experiment, self.allowed, fabric_of(self.experiment).world_size)
        if self.experiment.weights is not None and self.directory is None:
            from ..features.weights import check

            check(self.experiment.weights, plan.shapes, self.experiment.model.name, plan.added, plan.experts)
        return plan

    def first_rows(self) -> "FirstRows":
        """Returns the first training samples as the model gets them. Raises as a run does where the data are missing
        or broken.
        """
        from ...tasks.first_rows import first_rows
        from ..planning.build import assemble

        parts = assemble(self.experiment, self.allowed, fabric_of(self.experiment).world_size)
        return first_rows(parts.data, parts.load()[0])

    def absent(self) -> str | None:
        """The data that a run would look for, or fetch, before it starts: a plan needs none of them."""
        data = _data_of(self)
        if data.found() is not None:
            return None
        return f"data={self.experiment.data.name}: not on this machine, where a run needs them. {data.how_to_get()}"

    def submission(self) -> str | None:
        """Returns what its scheduler would be given, as text; None where it has none. Raises `ConfigError` or
        `MachineError`.
        """
        from ..fabrics.kinds import Elsewhere
        from ..jobs.making import job_launcher_of
        from ..jobs.scheduler import SubmittedRun
        from ..jobs.submission import check

        if not isinstance(fabric_of(self.experiment), Elsewhere):
            return None
        launcher = job_launcher_of(self.experiment, self.allowed)
        check(self.experiment, launcher)
        name = self.experiment.name or ("RUN" if self.directory is None else self.directory.name)
        config = yaml.safe_dump(self.config, sort_keys=False)
        return launcher.text(SubmittedRun(Path(ROOT).absolute() / name, self.allowed, config))

    def step_time(self, plan: "Plan") -> "PredictedStep":
        """Returns the predicted time of a step, on accelerators that are described or on a machine that was measured.

        Raises `NotPredicted`.
        """
        from ..predict.step_time import predict_step

        return predict_step(self.experiment, plan.layout, plan.spec, plan.device, self.allowed)

    def prediction(self, plan: "Plan") -> "PredictedStep | None":
        """Returns the same as `step_time`; None where it is not predicted."""
        from ...cost.predicted import NotPredicted

        try:
            return self.step_time(plan)
        except NotPredicted:
            return None

    def timetable(self) -> "Timetable | None":
        """Returns the timetable of a step by the strategy's schedule, if it has one."""
        from ..predict.timetable import make_timetable

        return make_timetable(self.experiment, self.allowed, fabric_of(self.experiment).world_size)


def prepare(
    overrides: Settings = (),
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    name: str | None = None,
    resume: str | None = None,
    root: Path | str = ROOT,
    trace: Path | str | None = None,
    trust_checkpoint: bool = False,
    **settings: Any,
) -> Prepared:
    """Compose and check the configuration: see settings.py. `settings`: further keys of it, `sync="asp"`.

    Raises `ConfigError` and other errors with an `exit_code`.
    """
    given = asked(overrides, settings)
    allow_modules = [*allow_modules, *given.allowed]
    directory = stored = chosen = None
    trace_file = _trace_file(Path(trace)) if trace is not None else None
    if resume is not None:
        if name is not None:
            raise ConfigError(f"--name {name}: a resumed run keeps its name")
        run_name, _, step = resume.partition("@")
        if given.experiment is not None or given.built or given.callbacks:
            raise ConfigError(f"--resume {run_name}: a resumed run goes on as it was; give what changes as overrides")
        directory = RunDirectory.open(root, run_name)
        if (directory.path / SWEEP_NOTE).exists():
            sweep = directory.path.parent.name
            how = f"paceline sweep --resume --name {sweep}"
            raise ConfigError(f"--resume {run_name}: is a trial of the sweep {sweep}; go on with: {how}")
        stored = read_stored(directory)
        if not (fabric := fabric_of(stored.experiment)).saves:  # whatever is asked of it now
            fabric.check(stored.experiment, resumes=True)
        experiment = override_stored(stored.experiment, given.overrides)
        fabric_of(experiment).check(experiment, resumes=True)
        from ..planning.resuming import as_many_workers, checkpoint_of

        chosen = checkpoint_of(directory, step)
        experiment = as_many_workers(experiment, chosen)
    else:
        experiment = given.experiment
        if experiment is None:
            experiment = given.completed(compose(given.overrides, Path(config_dir) if config_dir else None))
        if name is not None:
            experiment = experiment.model_copy(update={"name": name})
    if trust_checkpoint and (experiment.weights is None or resume is not None):
        raise ConfigError(
            "--trust-checkpoint: is for the DeepSpeed checkpoint that weights=DIR names; there is none here"
        )
    if experiment.weights is not None and resume is None:
        from ..features.weights import resolved

        experiment = resolved(experiment, trust_checkpoint, root)
    if experiment.choice("distillation").knobs.get("teacher") is not None:
        from ..features.distilling import resolved as with_teacher

        experiment = with_teacher(experiment, root)
    if experiment.name is not None and resume is None and is_first() and not _is_of_this_job(root, experiment.name):
        RunDirectory.check_free(root, experiment.name)  # torchrun's other workers may come after the first made it
    check_tracking(experiment.tracking)
    find_modules(allow_modules)
    fabric_of(experiment).check(experiment, resumes=resume is not None)
    experiment = _with_files_read(experiment, tuple(allow_modules))
    return Prepared(experiment, tuple(allow_modules), directory, stored, chosen, trace_file)


def find_modules(allowed: Sequence[str]) -> None:
    """Lets Python find the user's own modules where the user is."""
    if allowed and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def plan(overrides: "Settings | Prepared" = (), **options: Any) -> "Plan":
    """Returns the plan of a run, with the bytes that a worker would send and hold. Nothing is trained, and no data are
    needed.

    `options`: those of `prepare`, and further keys of the configuration. Raises as `prepare` does.
    """
    if isinstance(overrides, Prepared):
        if options:
            raise ConfigError("what engine.prepare returned is planned as it is; give it these options")
        return overrides.plan()
    return prepare(overrides, **options).plan()


def _is_of_this_job(root: Path | str, name: str) -> bool:
    if not was_started():
        return False
    from .generations import is_of_this_job

    return is_of_this_job(Path(root).absolute() / name)


def _with_files_read(experiment: Experiment, allowed: tuple[str, ...]) -> Experiment:
    from ...strategies import Strategy
    from ...strategies.core.protocols import ReadsFiles
    from ..config.targets import load_class

    chosen = experiment.strategy
    its_class = load_class("strategy", chosen.target, Strategy, allowed)
    if not issubclass(its_class, ReadsFiles):
        return experiment
    knobs = its_class.read_files(chosen.knobs, allowed)
    return experiment.model_copy(update={"strategy": chosen.model_copy(update={"knobs": knobs})})


def find_fit(
    overrides: Sequence[str] = (),
    strategies: Sequence[str] = (),
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
) -> "Fit":
    """Returns what fits into the hardware's memory (engine/predict/fit.py). `strategies`: further choices to try."""
    prepared = prepare(overrides, config_dir, allow_modules)
    from ..predict.fit import search

    directory = Path(config_dir) if config_dir else None
    world_size = fabric_of(prepared.experiment).world_size
    return search(overrides, strategies, directory, prepared.allowed, world_size)


def _trace_file(file: Path) -> Path:
    """Returns the path of the trace; workers have another current directory. Raises `ConfigError` or `MachineError`."""
    path = file.resolve()
    if not path.parent.is_dir():
        raise ConfigError(f"--trace {file}: there is no directory {path.parent}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--trace {file}: must name a file, and is {'a directory' if path.is_dir() else 'a device'}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise MachineError(f"--trace {file}: cannot write to {path.parent} ({error.strerror})") from None


def make_ready(plan: "Plan", quiet: bool) -> None:
    """Prepares this host, once, for a strategy and for sums in shared memory, where that takes long."""
    from ...comm.shared_sum import NativeSum
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
    on_cpus = plan.device.type == "cpu" and not fabric.modelled
    if on_cpus and one_host and size > 1 and not NativeSum.available():
        say(
            "note: no native code can be compiled here, so that workers add up in shared memory by torch, which is "
            "about three times slower; paceline doctor says what is missing"
        )


def run(
    overrides: "Settings | Prepared" = (),
    *,
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    name: str | None = None,
    resume: str | None = None,
    root: Path | str = ROOT,
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
    directories are made. `quiet`: no progress on stderr; `plain`: in lines, on a terminal too. `trace`: a file to write
    every worker's compute, communication and waiting to at the end, for ui.perfetto.dev. `trust_checkpoint`: unpickle
    the DeepSpeed checkpoint that `weights` names. `detach`: return None once a scheduler has the run. Raises errors
    with an `exit_code` (docs/running.md, "How it fails").
    """
    from ..fabrics.kinds import Elsewhere

    with noted():
        if isinstance(overrides, Prepared):
            if settings or allow_modules or trust_checkpoint or any((config_dir, name, resume, trace)):
                raise ConfigError(
                    "what engine.prepare returned is run as it is; give it these options, and run the rest"
                )
            prepared = overrides
        else:
            options = (config_dir, allow_modules, name, resume, root, trace, trust_checkpoint)
            prepared = prepare(overrides, *options, **settings)
        plan = prepared.plan()
        if not quiet and is_first():
            for text in plan.notes:
                print(f"note: {text}", file=sys.stderr, flush=True)
        if detach and not isinstance(fabric_of(prepared.experiment), Elsewhere):
            raise ConfigError(
                f"--detach: launcher={prepared.experiment.choice('launcher').name} starts workers of this command. "
                "Choose a scheduler: paceline list launcher."
            )
        return carry_out(prepared, plan, Path(root), quiet, plain=plain, detach=detach)


def _submit(
    prepared: Prepared,
    directory: RunDirectory,
    sinks: Sequence[Sink],
    say: Callable[[str], object],
    started: "Callable[[Stoppable], object]",
    detach: bool,
) -> Result | None:
    """Submits the run, or finds its job if it has one, and follows it to its end; `detach`: without following.

    Raises what the run ended with.
    """
    from ..jobs import submission
    from ..jobs.making import scheduler_of

    scheduler = scheduler_of(prepared.experiment, prepared.allowed)
    if (note := open_job(directory.path)) is None:
        note = submission.submit(directory, prepared.experiment, scheduler, prepared.allowed)
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
    if prepared.checkpoint is not None:
        from ..planning.resuming import check_can_go_on

        assert prepared.directory is not None and prepared.stored is not None
        check_can_go_on(prepared.directory, prepared.stored, prepared.checkpoint, plan, data, prepared.allowed)
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
    from ..fabrics.kinds import Elsewhere
    from ..launch import launcher_on
    from ..launch.launching import launch

    if isinstance(fabric_of(prepared.experiment), Elsewhere):
        directory = _opened_for_a_job(prepared, plan, root)
        sinks = [*([] if quiet else [progress(directory.path, plain=plain)]), *opened(directory)]
        return _submit(prepared, directory, sinks, (lambda _: None) if quiet else _say, started, detach)
    data = _check(prepared, plan)
    launcher, layout = launcher_on(fabric_of(prepared.experiment)), plan.layout
    tells = launcher.fabric.tells(layout)
    make_ready(plan, quiet or not tells)
    directory, checkpoint = launcher.open(
        prepared.experiment, prepared.allowed, layout, lambda: open_directory(prepared, plan, root, data)
    )
    if checkpoint != prepared.checkpoint:  # an earlier generation of torchrun's job made it
        prepared = replace(prepared, directory=directory, stored=read_stored(directory), checkpoint=checkpoint)
    memory = sum(plan.peak_memory().values())
    with held(directory.metrics) if tells else nullcontext():
        mirror = start_mirror(prepared, directory, quiet, opened(directory), plain) if tells else None
        try:
            launch(launcher, prepared.assignment(directory, plan), layout, plan.survives, data.preload, started, memory)
        except Exception as error:
            if tells:
                _note_the_end(directory, error)
            raise
        finally:
            if mirror is not None:
                close(mirror)
    result = result_of(directory) if tells else None
    if result is not None and result.status == "failed":
        raise UntrainedError(f"run {result.name}: {result.summary['reason']}")
    return result


def _opened_for_a_job(prepared: Prepared, plan: "Plan", root: Path) -> RunDirectory:
    """The directory of a run for a scheduler: made anew, or one whose job goes on. Raises what `_check` raises."""
    from ..jobs.making import scheduler_of
    from ..jobs.submission import check

    if prepared.directory is not None and open_job(prepared.directory.path) is not None:
        return prepared.directory
    check(prepared.experiment, scheduler_of(prepared.experiment, prepared.allowed))
    return open_directory(prepared, plan, root, _check(prepared, plan))[0]


def _say(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)


def _check_machine(prepared: Prepared, plan: "Plan") -> None:
    """A run needs the machine that its hardware describes. Raises `ConfigError` or `MachineError`."""
    import torch

    from ..features.compiling import check_machine

    check_machine(prepared.experiment, plan.device)
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


def _note_the_end(directory: RunDirectory, error: Exception) -> None:
    """Records for `compare` why there is no summary."""
    if directory.summary.exists():
        return
    status = "diverged" if exit_code_of(error) == DivergedError.exit_code else "failed"
    if isinstance(error, InterruptedRunError):  # before a worker could write a summary
        status = "interrupted"
    with suppress(StorageError):
        directory.add(End(status, str(error)))


def open_directory(prepared: Prepared, plan: "Plan", root: Path, data: "Data") -> tuple[RunDirectory, Path | None]:
    """The run's directory, made and described, or that of the run to resume; and the checkpoint to go on from."""
    from .generations import earlier, note_job

    experiment, directory, checkpoint = prepared.experiment, prepared.directory, prepared.checkpoint
    if directory is None and experiment.name is not None:
        found = earlier(root.absolute() / experiment.name, prepared.config, plan, data)
        directory, checkpoint = found or (None, None)
    if directory is None:
        directory = RunDirectory.create(root, experiment.name or _new_name(experiment, root))
        directory.write_environment(environment())
        note_job(directory)
        if experiment.weights is not None:
            from ..features.weights import convert

            convert(experiment, directory.path, plan.shapes, plan.added)
    else:
        directory.forget_summary()
        if not was_started():
            forget_job(directory.path)  # it goes on here
    if is_submitted():  # whoever submitted it wrote it
        return directory, checkpoint
    # a resumed run's too: the next time it goes on with what was changed this time
    directory.write_config(yaml.safe_dump(prepared.config, sort_keys=False))
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


def _new_name(experiment: Experiment, root: Path) -> str:
    parts = [experiment.strategy.name, experiment.sync.name, experiment.model.name, experiment.data.name]
    stem = name_of("-".join([*parts, time.strftime("%m%d-%H%M%S")]))
    names = [stem, *(f"{stem}-{i}" for i in range(2, 100))]
    return next(name for name in names if not (root / name).exists())


def check_data(prepared: Prepared) -> "Data":
    """Checks before any process starts that the data are there. If not, it fetches them, once. Raises
    `MissingDataError`.
    """
    from ...tasks.checks import load_checked

    data = _data_of(prepared)
    if data.found() is None:
        load_checked(prepared.experiment.data.name, data)
    return data


def _data_of(prepared: Prepared) -> "Data":
    from ...tasks.base import Data
    from ..config.targets import build

    return build("data", prepared.experiment.data, Data, prepared.allowed, {})
