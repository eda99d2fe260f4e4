"""Notes, one sentence each, on behaviour that one may not expect of a configuration. None of them is an error."""

import os

import torch

from ...conf.counted import counted
from ...cost.calibration import read
from ...strategies import Sync
from ...tasks.partition import Partition
from ..base.machine import here_unlike
from ..config.experiment import Experiment
from ..fabrics import fabric_of
from ..fabrics.clients import dealt_to
from ..fabrics.layout import RunLayout


def notes_on(
    experiment: Experiment,
    sync: Sync,
    layout: RunLayout,
    steps: int | None,
    samples: int | None,
    device: torch.device,
) -> list[str]:
    """`steps` and `samples` (to train on): None where the data must say."""
    notes = [
        *_on_calibration(experiment),
        *_on_rate(experiment),
        *_on_batches(experiment, sync, layout, samples),
        *_on_timing(experiment, steps),
        *fabric_of(experiment).device_notes(experiment, layout, device),
    ]
    notes += [*_on_cores(experiment, layout, device), *_on_rounds(sync, layout, steps)]
    return [*notes, *_on_replicas(experiment, sync, layout)]


def _on_calibration(experiment: Experiment) -> list[str]:
    hardware = experiment.hardware
    if hardware.calibration is None:
        return []
    calibration = read(hardware.calibration)
    notes: list[str] = []
    if differs := here_unlike(calibration):
        notes.append(
            "hardware.calibration: was measured on another machine, and predicted times are that one's: here it is "
            f"{', '.join(differs)}; paceline calibrate measures this one"
        )
    if disturbed := calibration.disturbance():
        notes.append(
            "hardware.calibration: other work ran while it was measured, and predicted times may be far off: "
            f"{disturbed}; paceline calibrate measures again"
        )
    return notes


def untimed(after: int, steps: int) -> int:
    """Returns how many first steps are left out of the timing: `after`, but at most half of them."""
    return min(after, steps // 2)


def effective_batch(partition: Partition, replicas: int) -> int:
    """The most samples that a replica takes in one step; a first step is as large as any. On average, where they are
    drawn.
    """
    if partition.expected is not None:
        return -(-partition.expected // replicas)
    return max(partition.size(0, replica) for replica in range(replicas))


def _on_rate(experiment: Experiment) -> list[str]:
    """A sweep over rates may have a 0 among them: it is no error."""
    knobs = experiment.optimizer.knobs
    if any(knobs.get(key, 1) != 0 for key in ("lr", *(["adamw_lr"] if "adamw_lr" in knobs else []))):
        return []
    return [f"optimizer.lr={knobs['lr']:g}: no step moves a weight, so that nothing is learnt"]


def _on_batches(experiment: Experiment, sync: Sync, layout: RunLayout, samples: int | None) -> list[str]:
    among = dealt_to(sync, layout)
    if samples is None or (most := -(-samples // among)) >= experiment.batch_size:
        return []
    who = "replicas" if among == layout.replicas else "clients"
    return [
        f"batch_size={experiment.batch_size}: data={experiment.data.name} has {counted(samples, 'sample')} to train "
        f"on, so that each of {among:,} {who} takes at most {most:,} in a step"
    ]


def _on_timing(experiment: Experiment, steps: int | None) -> list[str]:
    if steps is None or (left_out := untimed(experiment.measure.after, steps)) == experiment.measure.after:
        return []
    return [
        f"measure.after={experiment.measure.after}: the run has {counted(steps, 'step')}, so that only the first "
        f"{left_out} are left out of the timing"
    ]


def _on_cores(experiment: Experiment, layout: RunLayout, device: torch.device) -> list[str]:
    hardware, cores = experiment.hardware, len(os.sched_getaffinity(0))
    if fabric_of(experiment).modelled or hardware.machine is not None or device.type != "cpu":
        return []
    here = fabric_of(experiment).workers_here(layout)
    if here <= cores:
        return []
    theirs = "one core" if cores == 1 else f"{cores} cores"
    return [
        f"hardware.workers={layout.workers}: {here} workers share the {theirs} of this host, so that each step "
        "(and the start) takes longer than on cores of their own; hardware=virtual models any number of workers"
    ]


def _on_rounds(sync: Sync, layout: RunLayout, steps: int | None) -> list[str]:
    if steps is not None or sync.period == 1 or layout.replicas == 1:
        return []
    return [
        f"sync.period={sync.period}: how many steps the run has is known once the data are dealt, and bytes are stated "
        "as if its last round were whole"
    ]


def _on_replicas(experiment: Experiment, sync: Sync, layout: RunLayout) -> list[str]:
    strategy, mode = experiment.strategy.name, experiment.sync.name
    if layout.parts == 1:
        return []
    if layout.replicas == 1 and mode != "bsp":
        return [
            f"sync={mode}: has nothing to do, as strategy={strategy} cuts 1 replica over {layout.parts} workers; "
            f"hardware.workers={2 * layout.parts} makes 2 replicas"
        ]
    return [f"sync={mode} with strategy={strategy}: {sync.traits.over_parts}"] if sync.traits.over_parts else []
