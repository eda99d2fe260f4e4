"""Saves checkpoints to resume from, and the trained weights."""

import json

from ...strategies import State
from ...strategies.core.placements import dims_of, pieces_of
from ...strategies.core.regrouped import order_of
from ...strategies.core.state import buffers_of, sharded_of, state_with
from ...tracking.records import CheckpointRecord, NoteRecord
from ..base import checkpoint
from ..base.checkpoint import Manifest
from ..callbacks.best import best_step
from ..fabrics.layout import Role
from ..features import models
from .unsaved import Unsaved
from .worker import Worker


class Saving:
    """All workers call these methods."""

    def __init__(self, worker: Worker, data_sums: dict[str, str]) -> None:
        """`data_sums`: see data_sums.py; on the chief."""
        self._worker, self._data_sums = worker, data_sums
        self._unsaved = Unsaved(worker.sync.optimizer)
        self.saved_at: int | None = None  # the step of the newest checkpoint
        self.exported: str | None = None  # the checksum of model.safetensors
        self.model_bytes: int | None = None  # of the model where it is put to use
        self.best = (
            best_step(worker.directory, worker.manifest.step) if worker.is_chief and worker.manifest else None
        )  # whose checkpoint stays

    def go_on(self, worker: Worker) -> None:
        """Goes on with another model."""
        self._worker, self._unsaved = worker, Unsaved(worker.sync.optimizer)

    def save(self, done: int, seconds: float, time_to_accuracy: float | None) -> None:
        """A checkpoint after step `done`, at so many seconds of training.

        Replica 0 writes: its parts their files, the chief the manifest once it has all their sums. The others write
        what they have of their own.
        """
        worker, sync, role = self._worker, self._worker.sync, self._worker.role
        for each in worker.hooks:
            each.before_saving(done)
        each = self._each
        if not (sync.traits.synchronous or role.replica == 0):
            return
        own = {name: parameter.detach() for name, parameter in sync.parameters.items()}
        parameters = own if each else sync.consensus()
        state = sync.state_dict()
        self.saved_at = done
        if role.replica != 0 and not each:
            for sharded in sharded_of(state):  # as replica 0 does while it writes
                sharded.gather()
            if self._writes(role):
                self._write(done, {"buffers": buffers_of(worker.module)})
            return
        whole = {"parameters": state_with(worker.module, parameters), "sync": state, **worker.hooks.state_dict()}
        whole["order"] = order_of(
            module := worker.parts.modules[role.part], worker.parts.make_optimizer(module.parameters())
        )
        if dims := dims_of([worker.module]):
            whole["split"] = dims
            whole["piece"] = pieces_of(worker.module, worker.strategy.mesh, role.part)
        self._write(done, whole)
        if worker.is_chief:
            if note := self._unsaved.told(f"optimizer={worker.experiment.optimizer.name}"):
                worker.directory.add(NoteRecord(note))
            writers = [rank for rank in range(worker.layout.workers) if self._writes(worker.layout.role(rank))]
            sums = dict(worker.read_of_living(f"checkpoint/{done}", writers))
            directory, identity = worker.directory, worker.assignment.identity
            states = worker.hooks.manifest() or None
            data = self._data_sums
            experiment = worker.experiment
            layout = worker.layout.workers, experiment.batch_size, experiment.strategy.model_dump()
            manifest = Manifest(done, seconds, time_to_accuracy, sums, identity, data, states, worker.phase, *layout)
            checkpoint.commit(directory.checkpoints, manifest, worker.experiment.checkpoint.keep, self.best)
            directory.add(CheckpointRecord(done))

    @property
    def _each(self) -> bool:
        """True where replicas differ, so that each writes its own weights."""
        traits = self._worker.sync.traits
        return traits.synchronous and not (traits.weights_agree and traits.state_agrees)

    def _writes(self, role: Role) -> bool:
        """Returns whether a worker writes a file: replica 0, and those that have weights or buffers of their own."""
        if role.replica == 0 or self._each:
            return True
        return self._worker.sync.traits.synchronous and bool(buffers_of(self._worker.parts.modules[role.part]))

    def _write(self, done: int, state: State) -> None:
        """Writes this worker's file, and tells the chief of it."""
        worker, role = self._worker, self._worker.role
        said = checkpoint.write_part(worker.directory.checkpoints, done, role.part, role.replica, state)
        worker.comm.key_values.post(f"checkpoint/{done}/{worker.comm.rank}", json.dumps(said))

    def export(self) -> None:
        """The trained model as one safetensors file that any of these models loads; beside it what was added to it."""
        worker, state = self._worker, self._worker.consensus()
        if state is not None:
            parts, file = worker.parts, worker.directory.path / "model.safetensors"
            self.exported = checkpoint.export(file, models.exported(parts, state))
            self.model_bytes = models.nbytes(parts, state)
            for apart in models.apart(parts, state):
                checkpoint.export_apart(worker.directory.path / apart.kind, apart)
