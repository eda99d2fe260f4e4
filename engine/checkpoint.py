"""Checkpoints: what a run needs to go on as if it had never stopped.

runs/<name>/checkpoints/step-00000120/
    part-000.safetensors   one part's parameters, and what its sync mode keeps (optimizer state)
    part-000.replica-0001.safetensors   another replica's, where replicas differ
    manifest.json          step, training seconds, and each file's SHA-256; written last

Everything is written under a temporary name, synced and renamed, so that a directory without `.tmp` is whole. The
previous checkpoints stay until the new one is.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ..strategies import State
from ..strategies.state import from_bytes, to_bytes
from .errors import CorruptCheckpointError, MachineError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    step: int  # the next one to train
    seconds: float  # of training so far
    time_to_accuracy: float | None
    files: dict[str, str]  # name -> SHA-256


def directory_of(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def file_of(part: int, replica: int) -> str:
    return f"part-{part:03d}.safetensors" if replica == 0 else f"part-{part:03d}.replica-{replica:04d}.safetensors"


def write_part(checkpoints: Path, step: int, part: int, replica: int, state: State) -> tuple[str, str]:
    """Write one part's file under the checkpoint's temporary name; returns its name and SHA-256."""
    data = to_bytes(state)
    name = file_of(part, replica)
    directory = directory_of(checkpoints, step).with_suffix(".tmp")
    try:
        directory.mkdir(exist_ok=True)  # not its parents: a run directory that is gone stays gone
        _write_synced(directory / name, data)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise _unwritable(directory, error) from error
    return name, hashlib.sha256(data).hexdigest()


def commit(checkpoints: Path, manifest: Manifest, keep: int) -> Path:
    """Make the checkpoint whose parts are written the newest one; drop all but the last `keep`.

    Those of later steps go too: the run was resumed from before them, and they are not its own any more.
    """
    final = directory_of(checkpoints, manifest.step)
    temporary = final.with_suffix(".tmp")
    try:
        _write_synced(temporary / MANIFEST, json.dumps(manifest.__dict__, indent=2).encode())
        _sync_directory(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_directory(checkpoints)
        own = [path for path in steps_of(checkpoints) if path <= final]
        for path in {*steps_of(checkpoints)} - {*own[-keep:]}:
            shutil.rmtree(path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritable(temporary, error) from error
    return final


def export(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """The trained model as one safetensors file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        _write_synced(
            temporary, safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        )
        temporary.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def steps_of(checkpoints: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    return sorted(path for path in checkpoints.glob("step-*") if path.suffix != ".tmp")


def read_manifest(checkpoint: Path) -> Manifest:
    """Raises `CorruptCheckpointError` unless every file is what the manifest says."""
    try:
        manifest = Manifest(**json.loads((checkpoint / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise _corrupt(checkpoint, MANIFEST, f"cannot be read ({error})") from None
    for name, expected in manifest.files.items():
        _read_checked(checkpoint, name, expected)
    return manifest


def read_part(checkpoint: Path, part: int, replica: int, manifest: Manifest) -> dict[str, Any]:
    """One part's state: the replica's own, or what replica 0 wrote for all. Raises `CorruptCheckpointError`."""
    name = file_of(part, replica)
    if name not in manifest.files:
        name = file_of(part, 0)
    if name not in manifest.files:
        raise _corrupt(checkpoint, name, "is not in the manifest")
    try:
        return from_bytes(_read_checked(checkpoint, name, manifest.files[name]))
    except ValueError as error:
        raise _corrupt(checkpoint, name, str(error)) from None


def _read_checked(checkpoint: Path, name: str, expected: str) -> bytes:
    try:
        data = (checkpoint / name).read_bytes()
    except OSError as error:
        raise _corrupt(checkpoint, name, f"cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != expected:
        raise _corrupt(checkpoint, name, "does not have the SHA-256 of its manifest")
    return data


def _corrupt(checkpoint: Path, name: str, why: str) -> CorruptCheckpointError:
    run, before = checkpoint.parent.parent.name, [p.name for p in steps_of(checkpoint.parent) if p < checkpoint]
    hint = f"; to go on from the one before: --resume {run}@{before[-1]}" if before else ""
    return CorruptCheckpointError(f"{checkpoint / name} {why}{hint}")


def _unwritable(path: Path, error: OSError) -> MachineError:
    return MachineError(f"cannot write {path}: {error.strerror or error}; earlier checkpoints are kept")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
