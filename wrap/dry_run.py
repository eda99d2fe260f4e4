"""`paceline launch --dry-run`: what the run of a script would be, told at its `wrap`."""

import os
from typing import NoReturn

from ..conf.counted import counted
from ..engine.base.started import DRY_RUN, RESUMES
from ..engine.config.experiment import Experiment
from ..strategies import Sync
from ..strategies.core.cost import World
from ..tracking.columns import human_bytes
from ..tracking.run_directory import RunDirectory
from .setting import WrappedScript, check_model, experiment_of, sync_of
from .shares import ShardedLoader, share_of


class DryRunEnd(SystemExit):
    """Ends a script at its `wrap`."""


def dry_run() -> int:
    """Returns the workers of the dry run that this is; 0 if it is none."""
    return int(os.environ.get(DRY_RUN, "0"))


def show(script: WrappedScript, workers: int) -> NoReturn:
    """Checks what `wrap` was given, prints what the run would be, and ends the script. Raises `ConfigError`."""
    experiment = experiment_of(script)
    sync = sync_of(experiment, script.optimizer)
    check_model(script, sync, workers)
    if script.name is not None and RESUMES not in os.environ:
        RunDirectory.check_free(script.root, script.name)
    print("\n".join(_lines(experiment, sync, script, workers)))
    raise DryRunEnd(0)


def _lines(experiment: Experiment, sync: Sync, script: WrappedScript, workers: int) -> list[str]:
    batches = ShardedLoader(script.loader, 0, workers, experiment.seed)
    steps, batch = script.planned(len(batches)), experiment.batch_size
    shares = [len(share_of(range(batch), rank, workers)) for rank in (0, workers - 1)]
    each = f"{shares[-1]} or {shares[0]}" if shares[0] != shares[-1] else str(shares[0])
    trained = [parameter for parameter in script.model.parameters() if parameter.requires_grad]
    entries = sum(parameter.numel() for parameter in trained)
    cost = sync.cost(trained, World(workers, len(batches), steps=steps or None))
    sent = f"not known beforehand: {cost.varies}" if cost.varies else human_bytes(sum(cost.worker.values()))
    who, passes = counted(workers, "worker"), counted(script.epochs, "pass")
    unknown = f"not known: the script's loop decides. One for each batch of {passes} (epochs=) makes {steps:,}"
    has = f"each worker has {each} of {batch} samples"
    return [
        f"dry run: {experiment.model.name} on {experiment.data.name}, sync={experiment.sync.name}: {who}",
        f"data: {batches.samples:,} samples, {len(batches):,} batches a pass; {has}",
        f"steps: {unknown if script.steps is None else f'{steps:,}, in {passes}'}",
        f"model: {entries:,} entries are trained by {experiment.optimizer.name}",
        f"a worker sends in a step: {sent}",
        "nothing was trained, and nothing was written",
    ]
