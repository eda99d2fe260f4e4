"""Selects the checkpoint from which a run goes on, and checks that it can."""

from contextlib import suppress
from pathlib import Path

from ...conf.counted import counted
from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ...tasks.base import Data
from ...tracking.errors import CorruptRunError
from ...tracking.run_directory import RunDirectory
from ..base.checkpoint import directory_of, read_manifest, steps_of
from ..base.failures import shortest
from ..callbacks.best import FILE, best_step
from ..config.data_sums import check_data, sums_of
from ..config.experiment import Experiment
from ..config.repeat import allowing, packages_of, quoted
from ..config.stored import StoredConfig, anew, check_identity
from ..fabrics import fabric_of
from . import resizing
from .planned import Plan


def checkpoint_of(directory: RunDirectory, step: str, stored: Experiment) -> Path:
    """The one that `--resume RUN@STEP` names, of any STEP or none: best, a number, a name. Raises `ConfigError`.

    `stored`: the run's configuration.
    """
    whole = steps_of(directory.checkpoints)
    if not whole:
        model, config = directory.path / "model.safetensors", str(shortest(str(directory.config)))
        own = allowing(packages_of(stored.model_dump()))
        raise ConfigError(
            f"--resume {directory.name}: the run has no checkpoint (checkpoint.every=0, or it ended before the first "
            "was due; checkpoint.every_steps=... makes them more often); "
            + (
                f"its weights are there to start anew from: {typed('weights', str(model))}"
                if model.exists()
                else f"to train it from step 0: {quoted(['paceline', 'train', '--config', config, *own])} --name NEW"
            )
        )
    if not step:
        return whole[-1]
    if step == "best":
        step = best_of(directory)
    elif step.isascii() and step.isdigit() and len(step) <= 18:  # the steps that it has behind it
        step = directory_of(directory.checkpoints, int(step)).name
    wanted = directory.checkpoints / step
    if wanted not in whole:
        names = ", ".join(path.name for path in whole)
        raise ConfigError(f"--resume {directory.name}@{step}: there is no such checkpoint; there are {names}")
    return wanted


def as_many_workers(
    experiment: Experiment, stored: Experiment, checkpoint: Path, allowed: tuple[str, ...]
) -> Experiment:
    """Returns it with the number of workers that trained `checkpoint`, where the configuration leaves it open.

    Another number of replicas has another `batch_size`, so that all together take as many samples in a step as before.
    Under torchrun, the number of processes says it, and must be the same unless `hardware.workers` is given.
    `stored`: as its configuration was.

    Raises `ConfigError`.
    """
    manifest, asked = read_manifest(checkpoint), experiment.hardware.workers
    if manifest.strategy is None and experiment.strategy != stored.strategy:
        raise ConfigError(
            f"strategy={experiment.strategy.name}: {checkpoint.name} is of an earlier version, which saved what no "
            f"other strategy can read. Choose strategy={stored.strategy.name} with its knobs until the next checkpoint."
        )
    counted = asked is None and fabric_of(experiment).world_size is not None
    if manifest.workers is None or (counted and manifest.is_of(experiment.strategy.model_dump())):
        return experiment
    workers = manifest.workers if asked is None else asked
    return resizing.as_many_samples(experiment, manifest, workers, allowed, fabric_of(experiment).world_size)


def best_of(directory: RunDirectory) -> str:
    """The name of the checkpoint of its best step. Raises `ConfigError`."""
    step = best_step(directory)
    if step is None:
        raise ConfigError(f"--resume {directory.name}@best: the run did not look for it; callbacks=[best] does")
    found = directory_of(directory.checkpoints, step)
    if not found.is_dir():
        weights = directory.path / FILE
        further = f"; to start anew from its weights: {typed('weights', str(weights))}" if weights.exists() else ""
        raise ConfigError(f"--resume {directory.name}@best: there is no checkpoint of its best step, {step}{further}")
    return found.name


def check_can_go_on(
    directory: RunDirectory,
    stored: StoredConfig,
    checkpoint: Path,
    plan: Plan,
    data: Data | None,
    allowed: tuple[str, ...] = (),
) -> None:
    """Checks before any process starts that the run can go on. `plan`: of the run as it is asked for now. `data`: None
    leaves out the check of their files.

    Raises `CorruptCheckpointError` or `ConfigError`.
    """
    manifest = read_manifest(checkpoint)
    check_identity(directory, stored, checkpoint, manifest.run)
    changes = manifest.workers != plan.layout.workers or not manifest.is_of(plan.experiment.strategy.model_dump())
    if manifest.workers is not None and changes:
        samples = manifest.replicas * (manifest.batch_size or stored.experiment.batch_size)
        if samples != plan.layout.replicas * plan.experiment.batch_size:
            raise ConfigError(
                f"--resume {directory.name}: {checkpoint.name} was trained by {counted(manifest.workers, 'worker')}, "
                f"and {counted(plan.layout.workers, 'worker')} would go on. Start as many workers as before, or say "
                f"that another number is meant: hardware.workers={plan.layout.workers}{anew(directory)}"
            )
        resizing.check(plan.experiment, allowed, checkpoint, manifest)
    before, now = stored.experiment, plan.experiment
    asks_the_same = (before.steps, before.epochs) == (now.steps, now.epochs)
    given = _length(now)
    if plan.trainings > 1 and not asks_the_same:
        was = _length(before)
        raise ConfigError(
            f"{given}: is what each of {plan.trainings} trainings takes, of which the run has made some with {was}; go "
            f"on with {was}"
        )
    epsilon = before.choice("privacy").knobs.get("epsilon")
    if epsilon is not None and not asks_the_same:
        raise ConfigError(
            f"{given}: privacy.epsilon={epsilon:g} chose the noise of as many steps as were asked for first, and steps "
            "with other noise are not counted; give privacy.noise from the start, or a run of its own"
        )
    more = "" if now.steps is None else ", or steps=null for as many as `epochs` says"
    made = _made(directory)
    newest = checkpoint == steps_of(directory.checkpoints)[-1]  # from an older one steps are made again, as asked
    if made is not None and newest and (asks_the_same if plan.steps is None else plan.steps == made):
        raise ConfigError(f"{given}: makes {made} steps, and the run has made them; give more to go on with it{more}")
    if plan.steps is not None and plan.steps < manifest.step:
        raise ConfigError(
            f"{given}: makes {plan.steps} steps, and {checkpoint.name} has {manifest.step} behind it already{more}"
        )
    if manifest.data is not None and data is not None:
        check_data(directory, sums_of(data), manifest.data)


def _length(experiment: Experiment) -> str:
    return f"epochs={experiment.epochs}" if experiment.steps is None else f"steps={experiment.steps}"


def _made(directory: RunDirectory) -> int | None:
    """The steps of a run that has made all it was asked for; None where it may go on as it is."""
    with suppress(CorruptRunError):  # a damaged summary is written anew
        summary = directory.read_summary() or {}
        if summary.get("status") == "completed" and summary.get("reason") is None:
            return summary.get("steps")
    return None
