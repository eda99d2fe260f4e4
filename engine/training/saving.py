"""Saves checkpoints to resume from, and the trained weights."""

import json

from ...strategies.core.placements import dims_of, pieces_of
from ...strategies.core.regrouped import order_of
from ...strategies.core.state import sharded_of, state_with
from ...tracking.records import CheckpointRecord
from ..base import checkpoint
from ..base.checkpoint import Manifest
from ..callbacks.best import best_step
from ..features import models
from .worker import Worker


class Saving:
    """All workers call these methods."""

    def __init__(self, worker: Worker, data_sums: dict[str, str]) -> None:
        """`data_sums`: see data_sums.py; on the chief."""
        self._worker, self._data_sums = worker, data_sums
        self.saved_at: int | None = None  # the step of the newest checkpoint
        self.exported: str | None = None  # the checksum of model.safetensors
        self.model_bytes: int | None = None  # of the model where it is put to use
        self.best = (
            best_step(worker.directory, worker.manifest.step) if worker.is_chief and worker.manifest else None
        )  # whose checkpoint stays

    def go_on(self, worker: Worker) -> None:
        """Goes on with another model."""
        self._worker = worker

    def save(self, done: int, seconds: float, time_to_accuracy: float | None) -> None:
        """A checkpoint after step `done`, at so many seconds of training.

        Replica 0 writes: its parts their files, the chief the manifest once it has all their sums.
        """
        worker, sync, role = self._worker, self._worker.sync, self._worker.role
        for each in worker.hooks:
            each.before_saving(done)
        alike = sync.traits.weights_agree and sync.traits.state_agrees
        each = sync.traits.synchronous and not alike  # replicas differ: each writes its own
        if not (sync.traits.synchronous or role.replica == 0):
            return
        own = {name: parameter.detach() for name, parameter in sync.parameters.items()}
        parameters = own if each else sync.consensus()
        state = sync.state_dict()
        self.saved_at = done
        if role.replica != 0 and not each:
            for sharded in sharded_of(state):  # as replica 0 does while it writes
                sharded.gather()
            return
        whole = {"parameters": state_with(worker.module, parameters), "sync": state, **worker.hooks.state_dict()}
        whole["order"] = order_of(
            module := worker.parts.modules[role.part], worker.parts.make_optimizer(module.parameters())
        )
        if dims := dims_of([worker.module]):
            whole["split"] = dims
            whole["piece"] = pieces_of(worker.module, worker.strategy.mesh, role.part)
        directory = worker.directory
        name, digest = checkpoint.write_part(directory.checkpoints, done, role.part, role.replica, whole)
        key = f"checkpoint/{done}"
        worker.comm.key_values.post(f"{key}/{worker.comm.rank}", json.dumps([name, digest]))
        if worker.is_chief:
            writers = range(worker.layout.workers if each else worker.layout.parts)
            sums = dict(worker.read_of_living(key, writers))
            identity = worker.assignment.identity
            states = worker.hooks.manifest() or None
            data = self._data_sums
            experiment = worker.experiment
            layout = worker.layout.workers, experiment.batch_size, experiment.strategy.model_dump()
            manifest = Manifest(done, seconds, time_to_accuracy, sums, identity, data, states, worker.phase, *layout)
            checkpoint.commit(directory.checkpoints, manifest, worker.experiment.checkpoint.keep, self.best)
            directory.add(CheckpointRecord(done))

    def export(self) -> None:
        """The trained model as one safetensors file that any of these models loads; beside it what was added to it."""
        worker, state = self._worker, self._worker.consensus()
        if state is not None:
            parts, file = worker.parts, worker.directory.path / "model.safetensors"
            self.exported = checkpoint.export(file, models.exported(parts, state))
            self.model_bytes = models.nbytes(parts, state)
            for apart in models.apart(parts, state):
                checkpoint.export_apart(worker.directory.path / apart.kind, apart)
