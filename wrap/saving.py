"""Checkpoints of a wrapped run: what its workers need to go on as if the script had never been stopped.

The script says when, and what of its own to keep (`run.save`). Beside it stand the weights, the optimizer, what the
sync mode keeps, the place in the loader's pass and the random numbers. Where replicas are alike, replica 0 writes for
all, and the others write what is their own. The files are those of any run's checkpoints (engine/base/checkpoint.py).
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..comm import Comm
from ..compat.optimizers import has_schedule
from ..conf.errors import ConfigError
from ..engine.base import checkpoint
from ..engine.base.checkpoint import Manifest
from ..engine.base.failures import exit_code_of
from ..engine.base.generations import last_checkpoint, left_at, say_it_goes_on
from ..engine.config.experiment import Experiment
from ..engine.config.resumed import RESUMABLE
from ..engine.config.stored import check_identity, identity, read_stored
from ..engine.training.unsaved import Unsaved
from ..strategies import State, Sync
from ..strategies.core.state import buffers_of, load_state, read_all, state_of, state_with, uncompiled
from ..tracking.errors import StorageError
from ..tracking.records import CheckpointRecord
from ..tracking.redact import redact
from ..tracking.run_directory import RunDirectory
from .draws import draw_on, drawn
from .errors import ElsewhereError, ScriptError
from .order import WAY_OUT, ParameterOrder
from .shares import ShardedLoader

CHIEF = 0


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run goes on from. `own`: this worker's state, and what replica 0 wrote for all."""

    manifest: Manifest
    own: State

    @property
    def batches(self) -> int:
        """Returns the number of batches that training was on."""
        return self.own.get("batches", self.manifest.step)  # an earlier version did not count them

    def load_model(self, model: nn.Module) -> None:
        """Raises `ConfigError` for a model of another kind."""
        try:
            load_state(model, self.own["parameters"])
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"model: is another one than the checkpoint's: {error}") from None


def newest(experiment: Experiment, root: Path) -> Path:
    """Returns the newest checkpoint of the run with the script's name. Raises `ConfigError` where it cannot go on."""
    if experiment.name is None:
        raise ConfigError("resume: a run goes on by its name. Give wrap name=...")
    directory = RunDirectory.open(root, experiment.name)
    directory.check_over()
    name = directory.name
    if (directory.read_summary() or {}).get("status") == "completed":
        raise ConfigError(f"name={name}: the run is complete, and nothing is left to train. Choose another name.")
    found = checkpoint.steps_of(directory.checkpoints)
    if not found:
        raise ConfigError(
            f"name={name}: the run has no checkpoint to go on from; it ended before its first run.save(). Leave out "
            f"resume and choose another name, or remove the run first: paceline rm {name}."
        )
    _check_same(experiment, directory)
    return found[-1]


def newest_of_job(experiment: Experiment, root: Path) -> Path | None:
    """Returns the newest checkpoint of the run with the script's name if an earlier generation of torchrun's job made
    it; None if there is none. Raises `ConfigError` where it cannot go on.
    """
    directory = None if experiment.name is None else left_at(root.absolute() / experiment.name)
    if directory is None:
        return None
    _check_same(experiment, directory)
    if (found := last_checkpoint(directory)) is not None:
        say_it_goes_on(directory, found)
    return found


def read(path: Path, rank: int, workers: int, model: nn.Module) -> Resumed:
    """Returns the checkpoint, with tensors under the names that `model` has for them.

    Raises `ConfigError` for another number of workers, or `CorruptCheckpointError`.
    """
    manifest = checkpoint.read_manifest(path)
    if manifest.workers != workers:
        raise ConfigError(
            f"name={path.parent.parent.name}: {path.name} was made by {manifest.workers} workers, and {workers} would "
            f"go on. Start {manifest.workers}, or choose another name."
        )
    directory = RunDirectory(path.parent.parent)
    check_identity(directory, read_stored(directory), path, manifest.run)
    return Resumed(manifest, _under_names_of(model, checkpoint.read_part(path, 0, rank, manifest)))


def _under_names_of(model: nn.Module, own: State) -> State:
    """Renames tensors where `torch.compile` wrapped the model at the checkpoint and not now, or the reverse."""
    theirs, mine = (uncompiled({name: name for name in names}) for names in (own["parameters"], state_of(model)))
    names = {theirs[plain]: mine[plain] for plain in theirs.keys() & mine.keys()}
    if all(before == now for before, now in names.items()):
        return own
    return own | {key: _renamed(own[key], names) for key in ("parameters", "sync", "order") if key in own}


def _renamed(state: Any, names: Mapping[str, str]) -> Any:
    """Renames the keys of each dict that has names alone as keys, and texts that are names."""
    match state:
        case dict():
            new = names if state.keys() <= names.keys() else {}
            return type(state)((new.get(key, key), _renamed(each, names)) for key, each in state.items())
        case list():
            return [_renamed(each, names) for each in state]
        case str():
            return names.get(state, state)
    return state


def _check_same(experiment: Experiment, directory: RunDirectory) -> None:
    before, now = read_stored(directory).plain, json.loads(json.dumps(redact(experiment.model_dump())))
    for group in [each for each in now if each == "strategy" or each not in ("name", *RESUMABLE)]:
        old, new = _values(group, before.get(group)), _values(group, now[group])
        for key in [*new, *old]:
            if old.get(key) != new.get(key):
                raise ConfigError(
                    f"{key}={new.get(key)}: the run {directory.name} has {key}={old.get(key)}, and goes on as it "
                    f"began. Choose {key}={old.get(key)}, or another name."
                )


def _values(group: str, chosen: Any) -> dict[str, Any]:
    """Returns a configuration's values by key: of a choice its name first, then its knobs."""
    if not isinstance(chosen, Mapping):
        return {group: chosen}
    return {group: chosen.get("name"), **{f"{group}.{key}": each for key, each in chosen.get("knobs", {}).items()}}


class Checkpoints:
    """Writer and reader of a run's checkpoints. All workers call its methods together."""

    def __init__(
        self,
        model: nn.Module,
        sync: Sync,
        order: ParameterOrder,
        loader: ShardedLoader,
        comm: Comm,
        device: torch.device,
    ) -> None:
        """`order`: of the optimizer's parameters, before the sync mode was prepared."""
        self._model, self._sync, self._loader, self._comm, self._device = model, sync, loader, comm, device
        self._order = order
        self._unsaved = Unsaved(sync.optimizer)
        self._made = 0
        self._rates: list[float] = []  # of the checkpoint that the run goes on from, until its first step

    def go_on(self, resumed: Resumed) -> None:
        """Restores the rest once the sync mode is prepared, which gives all replicas the weights of the first.

        Raises `ConfigError` for an optimizer of other groups.
        """
        resumed.load_model(self._model)
        own = resumed.own
        kept = self._order.renumbered(own["sync"]["optimizer"], own.get("order"))
        try:
            self._sync.load_state_dict({**own["sync"], "optimizer": kept})
        except ValueError as error:
            raise ConfigError(f"optimizer: is another one than the checkpoint's: {error}. {WAY_OUT}") from None
        self._rates = _rates_of(self._sync.optimizer)
        self._loader.go_on(own["place"], lambda: draw_on(own["random"], self._device))

    def tell_of_rates(self, optimizer: Optimizer) -> None:
        """Prints a note in the first step after the checkpoint, if a schedule of torch's that was made after `wrap` has
        set other rates than the checkpoint's.
        """
        before, self._rates = self._rates, []
        changed = [(new, old) for new, old in zip(_rates_of(optimizer), before, strict=False) if new != old]
        if changed and has_schedule(optimizer):
            print(
                f"note: lr is {changed[0][0]:g} in the first step, and at the checkpoint lr was {changed[0][1]:g}: a "
                "schedule sets its first rate where it is made. Make it before wrap, with the script's own optimizer.",
                file=sys.stderr,
                flush=True,
            )

    def _tell_of_unsaved(self) -> None:
        if note := self._unsaved.told(f"optimizer={type(self._sync.optimizer).__name__}", ", or give them to run.save"):
            print(f"note: {note}", file=sys.stderr, flush=True)

    def write(
        self,
        directory: RunDirectory,
        done: int,
        batches: int,
        seconds: float,
        reached: float | None,
        keep: int,
        script: State,
    ) -> None:
        """Writes a checkpoint after step `done`. If a worker cannot write its part, `write` raises on all of them:
        `ScriptError` or `StorageError` there, and `ElsewhereError` on the others. So they stay together if the script
        catches it.
        """
        comm, sync = self._comm, self._sync
        alike = sync.traits.weights_agree and sync.traits.state_agrees
        with comm.ledger.aside():
            kept: State = {"script": script, "place": self._loader.place(), "random": drawn(self._device)}
            kept["batches"] = batches
            of_sync = read_all(sync.state_dict())
            if comm.rank == CHIEF or not alike:
                own = {name: parameter.detach() for name, parameter in sync.parameters.items()}
                kept |= {"parameters": state_with(self._model, own), "sync": of_sync}
                kept["order"] = self._order.names()
            else:
                kept["buffers"] = buffers_of(self._model)
            self._made += 1
            key, key_values, failed = f"checkpoint/{self._made}", comm.key_values, None
            try:
                said = {"file": checkpoint.write_part(directory.checkpoints, done, 0, comm.rank, kept)}
            except (TypeError, StorageError) as error:
                failed = error if isinstance(error, StorageError) else ScriptError(_of_script(error))
                said = _failed(failed, comm.rank)
            if comm.rank == CHIEF:
                every = [said, *(json.loads(key_values.read(f"{key}/{rank}", rank)) for rank in range(1, comm.size))]
                said = next((each for each in every if "failed" in each), {})
                if not said:
                    run = identity(read_stored(directory).plain)
                    files = dict(each["file"] for each in every)
                    manifest = Manifest(done, seconds, reached, files, run, workers=comm.size)
                    try:
                        checkpoint.commit(directory.checkpoints, manifest, keep)
                        directory.add(CheckpointRecord(done))
                        self._tell_of_unsaved()
                    except StorageError as error:
                        failed, said = error, _failed(error, CHIEF)
                key_values.post(key, json.dumps(said))
            else:
                key_values.post(f"{key}/{comm.rank}", json.dumps(said))
                said = json.loads(key_values.read(key, CHIEF))
        if failed is not None:
            raise failed
        if said:
            raise ElsewhereError(said["failed"], said["status"])


def _of_script(error: TypeError) -> str:
    return f"save: {str(error).replace('.script.', '')}"


def _failed(error: ScriptError | StorageError, rank: int) -> dict[str, Any]:
    return {"failed": f"worker {rank}: {error}", "status": exit_code_of(error)}


def _rates_of(optimizer: Optimizer) -> list[float]:
    return [float(each["lr"]) for each in optimizer.param_groups if "lr" in each]
