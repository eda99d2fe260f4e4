"""A run that goes on with another number of workers than before.

All replicas together take the samples that they would have taken: with K' in place of K replicas each takes
batch_size K / K' of them, so that an epoch has as many steps, and step t the same samples. What a run without dropout
computes is then the same sum in another order. Random numbers of a worker (dropout) are drawn by its rank, and differ.

What was saved once for all replicas is given to each of the new ones. Where replicas differ, by weights or by what the
sync mode keeps (momenta of local steps, residuals of a compressor), the run is refused.
"""

from pathlib import Path

from ...conf.errors import ConfigError
from ..base.checkpoint import read_manifest
from ..config.experiment import Experiment
from ..fabrics import asked_for, fabric_of
from .build import assemble


def batch_size(workers: int, each: int, now: int) -> int:
    """The batch of each replica, of `now` workers in place of `workers`, which took `each`. Raises `ConfigError`."""
    if (workers * each) % now:
        fits = ", ".join(str(number) for number in range(1, workers * each + 1) if (workers * each) % number == 0)
        raise ConfigError(
            f"hardware.workers={now}: the run goes on with the samples of its steps, of which {workers} workers took "
            f"{workers * each} for every part of a replica, and {now} do not divide them. Choose one of {fits}."
        )
    return workers * each // now


def at_this_size(experiment: Experiment, allowed: tuple[str, ...], checkpoint: Path | None) -> Experiment:
    """The experiment as the processes of a job train it, of which there may be fewer than were asked for, or other
    than there were. Raises `ConfigError`.
    """
    workers, size = _workers(experiment, allowed, fabric_of(experiment).world_size), experiment.batch_size
    manifest = None if checkpoint is None else read_manifest(checkpoint)
    if manifest is not None and manifest.workers is not None:
        before, size = manifest.workers, manifest.batch_size or size
    else:
        before = _workers(experiment, allowed, asked_for(experiment))
    hardware = experiment.hardware.model_copy(update={"workers": workers})
    return experiment.model_copy(update={"hardware": hardware, "batch_size": batch_size(before, size, workers)})


def _workers(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None) -> int:
    """The workers among so many processes."""
    free = experiment.hardware.model_copy(update={"workers": None})
    return assemble(experiment.model_copy(update={"hardware": free}), allowed, world_size).layout.workers


def check(experiment: Experiment, allowed: tuple[str, ...], before: int) -> None:
    """Refuse a run whose state is that of its replicas. `before`: the workers so far. Raises `ConfigError`."""
    parts = assemble(experiment, allowed, fabric_of(experiment).world_size)
    traits, why = parts.sync.traits, ""
    if parts.partitioner.owns or parts.partitioner.draws or parts.partitioner.copies > 1:
        why = f"partition={experiment.choice('partition').name}: deals samples for a fixed number of replicas"
    elif traits.synchronous and not (traits.weights_agree and traits.state_agrees):
        kept = "weights" if not traits.weights_agree else "state"
        if not traits.state_agrees and experiment.choice("compress").name != "none":
            kept = f"state (of compress={experiment.choice('compress').name})"
        why = f"sync={experiment.choice('sync').name}: each replica has {kept} of its own"
    elif experiment.choice("privacy").name != "none":
        why = f"privacy={experiment.choice('privacy').name}: noise is accounted for a fixed number of replicas"
    if why:
        raise ConfigError(
            f"hardware.workers={experiment.hardware.workers}: the run cannot change its size. {why}. Choose "
            f"hardware.workers={before}."
        )
