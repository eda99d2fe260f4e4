"""A run that goes on with another number of workers than before, or under another strategy.

All replicas together take the samples that they would have taken: with K' in place of K replicas, each takes
batch_size K / K' of them. So an epoch has as many steps, and step t has the same samples. A run without dropout then
computes the same sum in another order. The random numbers of a worker (dropout) depend on its rank, and differ.

State that was saved once for all replicas is given to each new replica, and the state of a part to the parts that have
its parameters now (strategies/core/regrouped.py). If replicas differ, by weights or by the sync mode's state (momenta
of local steps, residuals of a compressor), each new replica begins with the mean of all, or the run is refused. The
sync mode decides which (`Joinable`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ...strategies.core.protocols import Joinable
from ...strategies.core.regrouped import SavedParts, is_recut
from ...strategies.core.state import State, state_of
from ..base.checkpoint import Manifest, open_parts, read_manifest
from ..config.experiment import Experiment
from ..fabrics import asked_for, fabric_of
from ..fabrics.layout import RunLayout
from ..features import phases
from ..features.feature import Parts
from .build import assemble


def batch_size(replicas: int, each: int, now: int, parts: int) -> int:
    """Returns the batch size of each of `now` replicas, in place of `replicas` with `each`. Raises `ConfigError`.

    `parts`: the number of workers of a new replica.
    """
    if (samples := replicas * each) % now:
        fits = ", ".join(str(number * parts) for number in range(1, samples + 1) if samples % number == 0)
        raise ConfigError(
            f"hardware.workers={now * parts}: the run goes on with the samples of its steps, {samples} in each, which "
            f"{now} replicas do not divide. Choose one of {fits}."
        )
    return samples // now


def as_many_samples(
    experiment: Experiment, manifest: Manifest, workers: int, allowed: tuple[str, ...], world_size: int | None
) -> Experiment:
    """Returns the experiment with so many workers, and with a batch size by which all of them together take as many
    samples in a step as the checkpoint's workers did. Raises `ConfigError`.
    """
    hardware = experiment.hardware.model_copy(update={"workers": workers})
    resized = experiment.model_copy(update={"hardware": hardware})
    moved = not manifest.is_of(experiment.strategy.model_dump())
    parts = assemble(resized, allowed, world_size).layout.parts if moved else manifest.parts
    replicas, rest = divmod(workers, parts)
    if rest or replicas == 0:  # the layout refuses it
        return resized
    size = batch_size(manifest.replicas, manifest.batch_size or experiment.batch_size, replicas, parts)
    return resized.model_copy(update={"batch_size": size})


def at_this_size(experiment: Experiment, allowed: tuple[str, ...], checkpoint: Path | None) -> Experiment:
    """Returns the experiment for the processes that a job has now. They may be fewer than were asked for, and another
    number than before. Raises `ConfigError`.
    """
    world_size = fabric_of(experiment).world_size
    now = _layout(experiment, allowed, world_size)
    manifest = None if checkpoint is None else read_manifest(checkpoint)
    if manifest is not None and manifest.workers is not None:
        return as_many_samples(experiment, manifest, now.workers, allowed, world_size)
    before = _layout(experiment, allowed, asked_for(experiment))
    hardware = experiment.hardware.model_copy(update={"workers": now.workers})
    size = batch_size(before.replicas, experiment.batch_size, now.replicas, now.parts)
    return experiment.model_copy(update={"hardware": hardware, "batch_size": size})


def _layout(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None) -> RunLayout:
    """Returns the layout of so many processes."""
    free = experiment.hardware.model_copy(update={"workers": None})
    return assemble(experiment.model_copy(update={"hardware": free}), allowed, world_size).layout


def check(experiment: Experiment, allowed: tuple[str, ...], checkpoint: Path, manifest: Manifest) -> None:
    """Refuse a run whose state cannot be given to other replicas, or to other parts. Raises `ConfigError` or
    `CorruptCheckpointError`.
    """
    parts = assemble(experiment, allowed, fabric_of(experiment).world_size)
    traits, why, moved = parts.sync.traits, "", not manifest.is_of(experiment.strategy.model_dump())
    others, trained = manifest.replicas != parts.layout.replicas, phases.phase_saved(parts, checkpoint, manifest.phase)
    states = open_parts(checkpoint, manifest)
    recut = moved or is_recut(states, trained.modules)
    if others and (parts.partitioner.owns or parts.partitioner.draws or parts.partitioner.copies > 1):
        why = f"partition={experiment.choice('partition').name}: deals samples for a fixed number of replicas"
    elif others and experiment.choice("privacy").name != "none":
        why = f"privacy={experiment.choice('privacy').name}: noise is accounted for a fixed number of replicas"
    elif traits.synchronous and not (traits.weights_agree and traits.state_agrees):
        compress = experiment.choice("compress").name
        kept = f" with compress={compress}" if traits.weights_agree and compress != "none" else ""
        its = f"each replica has {'state' if traits.weights_agree else 'weights'} of its own{kept}"
        if isinstance(parts.sync, Joinable) and not recut:
            its = parts.sync.unjoinable(states[0]["sync"])
        why = its and f"sync={experiment.choice('sync').name}: {its}"
    elif recut:
        why = _uncarried(states, checkpoint.name, trained)
    if not why:
        return
    if moved:
        now, before = _apart(experiment.strategy.model_dump(), manifest.strategy or {})
        raise ConfigError(f"{now}: the run cannot go on under another strategy. {why}. Choose {before}.")
    raise ConfigError(
        f"hardware.workers={experiment.hardware.workers}: the run cannot change its size. {why}. Choose "
        f"hardware.workers={manifest.workers}."
    )


def _apart(now: dict[str, Any], before: dict[str, Any]) -> tuple[str, str]:
    """Returns two choices of a strategy in words: their names, or what differs if they have the same one."""
    if now["name"] != before.get("name"):
        return f"strategy={now['name']}", f"strategy={before.get('name')}"
    mine, theirs = now["knobs"], before.get("knobs", {})
    other = [key for key in mine if mine[key] != theirs.get(key)]
    first, second = (" ".join(f"strategy.{key}={each.get(key)}" for key in other) for each in (mine, theirs))
    return first, second


def _uncarried(states: Sequence[State], checkpoint: str, parts: Parts) -> str:
    """Returns why other parts cannot take over the states of a checkpoint; "" if they can."""
    saved = SavedParts(states)
    mine = {name: list(tensor.shape) for name, tensor in state_of(parts.model).items()}
    theirs = saved.shapes()
    if other := sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)):
        return f"{checkpoint} has another {other[0]}"
    if ("scale" in states[0]) != (parts.precision.scale() is not None):
        return f"precision={parts.experiment.choice('precision').name}: DeepSpeed keeps a loss scale of its own"
    try:
        saved.check(parts.modules, parts.make_optimizer)
    except ValueError as error:
        return str(error)
    return ""
