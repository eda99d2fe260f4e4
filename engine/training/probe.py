"""Records a run's losses, gradients and weights after each step, written by its workers for `paceline verify`.

In `run/witness`: `0003-002.json` is what worker 2 says of step 3 (its replica's loss, and digests of its weights), and
`0003.safetensors`, by the chief, the whole model's weights and gradients, named as serial training names them.
`end.safetensors` has what training made, and the average of weights where one was kept. Steps count from 1.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ...strategies.core import staged
from ...strategies.core.placements import placements_of
from ...strategies.core.protocols import end_steps, gradients_of
from ..features import averaging
from .job import Job
from .loop import train
from .worker import Worker

FOLDER = "witness"
WEIGHT, GRADIENT, AVERAGE = "weight/", "gradient/", "average/"  # prefixes of names in the files


def watched(worker: Worker, job: Job) -> None:
    """Train, and write down what there is after each step. All workers call."""
    folder = folder_of(worker.assignment.run)
    done = train(replace(job, after_step=partial(_after_step, worker, folder)))
    staged.drain(worker.strategy)
    with worker.comm.ledger.aside():
        end_steps(worker.sync)
        worker.sync.finish()
        for each in worker.hooks:
            each.finish(done)
        made, averaged = worker.trained(), worker.consensus() if averaging.of(worker.parts) else None
        if worker.is_chief and made is not None:
            kept = {WEIGHT + name: tensor for name, tensor in made.items()}
            kept |= {AVERAGE + name: tensor for name, tensor in (averaged or {}).items()}
            _write(folder / "end.safetensors", kept)
    leave_together(worker)


def leave_together(worker: Worker) -> None:
    """Nobody leaves, a server neither, before all have written."""
    key_values, layout = worker.comm.key_values, worker.layout
    key_values.post(f"witnessed/{worker.comm.rank}", "null")
    if worker.is_chief:
        worker.read_of_living("witnessed", range(layout.world_size))
        key_values.post("over", "")
    key_values.read("over", layout.chief)


def folder_of(run: Path) -> Path:
    return run / FOLDER


def _after_step(worker: Worker, folder: Path, job: Job, before: int, done: int, loss: float | None) -> None:
    with worker.comm.ledger.aside():
        kept: dict[str, Tensor] = {}
        digests: dict[str, str] = {}
        if worker.sync.traits.synchronous and worker.sync.traits.weights_agree:
            own = worker.sync.consensus()
            digests = _digests(worker, own)
            gradients = gradients_of(worker.sync)
            if worker.role.replica == 0:
                kept = _whole(worker, WEIGHT, own)
                kept |= {} if gradients is None else _whole(worker, GRADIENT, gradients)
        step = done - 1
        said = {
            "step": done,
            "rank": worker.comm.rank,
            "replica": worker.role.replica,
            "loss": loss,
            "samples": job.partition.size(step, job.replica),
            "digests": digests,
        }
        name = f"{done:04d}-{worker.comm.rank:03d}.json"
        (folder / name).write_text(json.dumps(said), encoding="utf-8")
        if worker.is_chief and kept:
            _write(folder / f"{done:04d}.safetensors", kept)


def _whole(worker: Worker, prefix: str, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The whole model's, on the chief; all workers of replica 0 call."""
    state = worker.strategy.full_state(own)
    return {} if state is None else {prefix + name: tensor for name, tensor in state.items()}


def _digests(worker: Worker, own: dict[str, Tensor]) -> dict[str, str]:
    """Returns digests of this worker's tensors by name. The name of a piece of a tensor ends with the worker's part."""
    cut = placements_of(worker.module)
    return {
        f"{name}@{worker.role.part}" if name in cut else name: hashlib.sha256(_bytes(tensor)).hexdigest()
        for name, tensor in own.items()
    }


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(copies, file)


# -- read back, once the run is over


@dataclass(frozen=True)
class Probed:
    """The records of a run's workers. Lists are by step; None where a step's file is not there, or has no gradients."""

    losses: list[float | None]  # means over the samples of all replicas
    weights: list[dict[str, Tensor] | None]
    gradients: list[dict[str, Tensor] | None]
    disagree: tuple[int, str] | None  # the first step, and the first tensor in it, of which workers hold other values
    made: dict[str, Tensor] | None  # by the whole training
    averaged: dict[str, Tensor] | None = None  # of its weights, where an average was kept


def read(run: Path, steps: int) -> Probed:
    """Reads the records of a run that was `watched`, in whole or in part."""
    folder = folder_of(run)
    losses: list[float | None] = []
    weights: list[dict[str, Tensor] | None] = []
    gradients: list[dict[str, Tensor] | None] = []
    disagree = None
    for step in range(1, steps + 1):
        said = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob(f"{step:04d}-*.json"))]
        losses.append(_loss(said))
        kept = _read(folder / f"{step:04d}.safetensors")
        weights.append(_named(kept, WEIGHT))
        gradients.append(_named(kept, GRADIENT))
        if disagree is None and (name := _first_other(said)) is not None:
            disagree = step, name
    end = _read(folder / "end.safetensors")
    return Probed(losses, weights, gradients, disagree, _named(end, WEIGHT), _named(end, AVERAGE))


def _loss(said: list[dict[str, Any]]) -> float | None:
    """L = sum_j n_j L_j / sum_j n_j"""
    told = [(each["samples"], each["loss"]) for each in said if each["loss"] is not None]
    samples = sum(n for n, _ in told)
    return sum(n * loss for n, loss in told) / samples if samples else None


def _first_other(said: list[dict[str, Any]]) -> str | None:
    seen: dict[str, str] = {}
    for each in said:
        for name, digest in each["digests"].items():
            if seen.setdefault(name, digest) != digest:
                return name.partition("@")[0]
    return None


def _read(file: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(file) if file.exists() else {}


def _named(kept: dict[str, Tensor], prefix: str) -> dict[str, Tensor] | None:
    return {name.removeprefix(prefix): tensor for name, tensor in kept.items() if name.startswith(prefix)} or None
