"""One run from its overrides to a checked experiment, with the directory and the checkpoint that it goes on from.

Torch is imported once the configuration has been composed: a misspelt name is refused in a fraction of a second.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...conf.errors import ConfigError, check_options
from ...conf.grammar import listed
from ...tracking.job_files import JobNote, open_job
from ...tracking.redact import redact
from ...tracking.run_data import resuming
from ...tracking.run_directory import SWEEP_NOTE, RunDirectory
from ...tracking.sinks import check as check_tracking
from ...tracking.sources import sweep_at
from ..base import ROOT
from ..base.errors import MachineError
from ..base.failures import without_leaving
from ..base.own_modules import find_modules
from ..base.started import was_started
from ..config.compose import compose
from ..config.described import labelled
from ..config.experiment import Experiment
from ..config.resumed import override_stored
from ..config.settings import Settings, asked
from ..config.stored import StoredConfig, identity, read_stored
from ..config.typed import check_grammar
from ..fabrics import fabric_of

if TYPE_CHECKING:
    from ...cost.predicted import PredictedStep
    from ...tasks.base import Data
    from ...tasks.first_rows import FirstRows
    from ..fabrics.assignment import Assignment
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
    samples: Path | None = None  # the file for what the workers of a virtual cluster hold
    in_allocation: bool = False  # its scheduler has given this process the place for its workers
    root: Path | str = ROOT  # the folder of runs

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
            samples=self.samples,
        )

    @without_leaving()
    def plan(self) -> "Plan":
        from ..planning.make_plan import make_plan

        if fabric_of(self.experiment).submits:
            from ..jobs.making import job_launcher_of

            job_launcher_of(self.experiment, self.allowed)  # refuses its settings
        plan = make_plan(self.experiment, self.allowed, fabric_of(self.experiment).world_size)
        if self.experiment.weights is not None and self.directory is None:
            from ..features.weights import check, check_order

            check(self.experiment.weights, plan.shapes, self.experiment.model.name, plan.added, plan.experts)
            check_order(self.experiment.weights, plan.contents, self.experiment.data.name)
        return plan

    def check_can_go_on(self, plan: "Plan", data: "Data | None" = None) -> None:
        """Checks that a resumed run can go on as planned, and without `data` all but their files.

        Raises `CorruptCheckpointError` or `ConfigError`.
        """
        if self.checkpoint is not None:
            from ..planning.resuming import check_can_go_on

            assert self.directory is not None and self.stored is not None
            check_can_go_on(self.directory, self.stored, self.checkpoint, plan, data, self.allowed)

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
        data = data_of(self)
        if data.found() is not None:
            return None
        return f"data={self.experiment.data.name}: not on this machine, where a run needs them. {data.how_to_get()}"

    def submission(self) -> str | None:
        """Returns what its scheduler would be given, as text; None where it has none. Raises `ConfigError` or
        `MachineError`.
        """
        from ..jobs.making import job_launcher_of
        from ..jobs.scheduler import SubmittedRun
        from ..jobs.submission import check

        if not fabric_of(self.experiment).submits:
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


def has_job(directory: RunDirectory, job: JobNote) -> ConfigError:
    """Returns the error of a run that is to go on beside its job."""
    name = directory.name
    return ConfigError(
        f"--resume {name}: job {job.id} of launcher={job.launcher} has this run. Choose paceline watch {name}, or "
        f"paceline cancel {name} first."
    )


@without_leaving()
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
    check_options("a text or None", name=name, resume=resume)
    check_options("a text or a Path", root=root)
    check_options("a text, a Path or None", config_dir=config_dir, trace=trace)
    check_options("a list of texts", allow_modules=allow_modules)
    given = asked(overrides, settings)
    allow_modules = [*listed(allow_modules), *given.allowed]
    directory = stored = chosen = None
    trace_file = _trace_file(Path(trace)) if trace is not None else None
    if resume is not None:
        if name is not None:
            raise ConfigError(f"--name {name}: a resumed run keeps its name")
        run_name, _, step = resume.partition("@")
        if given.experiment is not None or given.built or given.callbacks:
            raise ConfigError(f"--resume {run_name}: a resumed run goes on as it was; give what changes as overrides")
        directory = _to_resume(run_name, root)
        stored = read_stored(directory)
        if not (fabric := fabric_of(stored.experiment)).saves:  # whatever is asked of it now
            fabric.check(stored.experiment, resumes=True)
        experiment = override_stored(stored.experiment, given.overrides)
        fabric_of(experiment).check(experiment, resumes=True)
        from ..planning.resuming import as_many_workers, checkpoint_of

        chosen = checkpoint_of(directory, step, stored.experiment)
        find_modules(allow_modules)
        experiment = as_many_workers(experiment, stored.experiment, chosen, tuple(allow_modules))
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
    if experiment.name is not None and resume is None and not was_started():
        RunDirectory.check_free(root, experiment.name)
    check_tracking(experiment.tracking)
    find_modules(allow_modules)
    _check_labels(given.overrides, tuple(allow_modules))
    fabric_of(experiment).check(experiment, resumes=resume is not None)
    experiment = _with_files_read(experiment, tuple(allow_modules))
    return Prepared(experiment, tuple(allow_modules), directory, stored, chosen, trace_file, root=root)


def _to_resume(name: str, root: Path | str) -> RunDirectory:
    """Opens a run that has ended, and that no other command goes on with. Raises as `prepare` does."""
    if (sweep := sweep_at(name, Path(root))) is not None:
        raise ConfigError(f"--resume {name}: is a sweep; go on with: {resuming(sweep)}")
    directory = RunDirectory.open(root, name)
    if directory.is_of_script():
        raise ConfigError(f"--resume {name}: is a run of a script. Choose paceline launch --resume SCRIPT.")
    if (directory.path / SWEEP_NOTE).exists():
        sweep = directory.path.parent
        raise ConfigError(f"--resume {name}: is a trial of the sweep {sweep.name}; go on with: {resuming(sweep)}")
    if (job := open_job(directory.path)) is not None:
        raise has_job(directory, job)
    if not was_started():  # else all meet first
        directory.check_over()
    return directory


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


def _check_labels(overrides: Sequence[str], allowed: tuple[str, ...]) -> None:
    typed = [(each.key_or_group, each.value()) for each in check_grammar(list(overrides))]
    for group, section in labelled(typed):
        from ..config.targets import check_label

        check_label(group, section, allowed)


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
    path = Path(os.path.realpath(file))
    if not path.parent.is_dir():
        raise ConfigError(f"--trace {file}: there is no directory {path.parent}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        found = "a link to itself" if path.is_symlink() else "a directory" if path.is_dir() else "a device"
        raise ConfigError(f"--trace {file}: must name a file, and is {found}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise MachineError(f"--trace {file}: cannot write to {path.parent} ({error.strerror})") from None


def check_data(prepared: Prepared) -> "Data":
    """Checks before any process starts that the data are there. If not, it fetches them, once. Raises
    `MissingDataError`.
    """
    from ...tasks.checks import load_checked

    data = data_of(prepared)
    if data.found() is None:
        load_checked(prepared.experiment.data.name, data)
    return data


def data_of(prepared: Prepared) -> "Data":
    from ...tasks.base import Data
    from ..config.targets import build

    return build("data", prepared.experiment.data, Data, prepared.allowed, {})
