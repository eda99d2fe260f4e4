"""Checkpoints: what a run needs to go on as if it had never stopped.

runs/<name>/checkpoints/step-00000120/
    part-000.safetensors   one part's parameters, and what its sync mode keeps (optimizer state)
    part-000.replica-0001.safetensors   another replica's: its buffers alone where replicas have the same weights
    manifest.json          step, training seconds, each file's SHA-256, the run's and its own; written last

Everything is written under a temporary name, synced and renamed, so that a directory without `.tmp` is whole. The
previous checkpoints stay until the new one is.
"""

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ...compat.full_disk import why_unwritten
from ...compat.storages import storage_key
from ...strategies import State
from ...strategies.adapt import Apart
from ...strategies.core.regrouped import SavedParts
from ...strategies.core.state import blocks_of, in_file, read_all
from ...tracking.checkpoints import STEP, step_of, steps_of
from ...tracking.checksums import BLANK, KEY, json_is_whole, json_sealed, read_header, seal
from ...tracking.errors import StorageError
from ...tracking.files import open_regular, open_to_write, parse_json, read_text
from ...tracking.run_directory import write_atomically
from .errors import CorruptCheckpointError

MANIFEST = "manifest.json"
PART = re.compile(r"part-(\d{3,})(\.replica-\d{4,})?\.safetensors")


@dataclass(frozen=True)
class Manifest:
    step: int  # the next one to train
    seconds: float  # of training so far
    time_to_accuracy: float | None
    files: dict[str, str]  # name -> SHA-256
    run: str  # SHA-256 of what the run is made of: see stored.py
    data: dict[str, str] | None = None  # file that was loaded -> SHA-256; None: an earlier version did not look
    callbacks: dict[str, Any] | None = None  # the state of each, by name
    phase: int = 0  # that its last step was in: see phases.py
    workers: int | None = None  # that trained; None: an earlier version did not write it
    batch_size: int | None = None  # of a replica; None: as in config.yaml, since the run never changed its size
    strategy: dict[str, Any] | None = None  # None: config.yaml's, since the run never changed it

    @property
    def parts(self) -> int:
        """Returns the number of parts of a replica."""
        return sum(found[2] is None for name in self.files if (found := PART.fullmatch(name)))

    @property
    def replicas(self) -> int:
        """Returns the number of replicas that trained. The manifest must have the number of workers."""
        assert self.workers is not None, "an earlier version wrote it"
        return self.workers // self.parts

    def is_of(self, strategy: dict[str, Any]) -> bool:
        """Returns whether this strategy trained, with the same knobs. `strategy`: its choice, as in config.yaml."""
        return self.strategy in (None, strategy)


def directory_of(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def file_of(part: int, replica: int) -> str:
    return f"part-{part:03d}.safetensors" if replica == 0 else f"part-{part:03d}.replica-{replica:04d}.safetensors"


def write_part(checkpoints: Path, step: int, part: int, replica: int, state: State) -> tuple[str, str]:
    """Write one part's file under the checkpoint's temporary name; returns its name and SHA-256."""
    blocks, digest = blocks_of(state), hashlib.sha256()
    name = file_of(part, replica)
    directory = directory_of(checkpoints, step).with_suffix(".tmp")

    def counted() -> Iterator[bytes | memoryview]:
        for block in blocks:
            digest.update(block)
            yield block

    try:
        directory.mkdir(exist_ok=True)  # not its parents: a run directory that is gone stays gone
        _write_synced(directory / name, counted())
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        for _ in blocks:  # other replicas gather all tensors with this one
            pass
        raise _unwritable(directory, error) from error
    return name, digest.hexdigest()


def commit(checkpoints: Path, manifest: Manifest, keep: int, best: int | None = None) -> Path:
    """Make the checkpoint whose parts are written the newest one; drop all but the last `keep` and that of step `best`.

    Those of later steps go too: the run was resumed from before them, and they are not its own any more.
    """
    final = directory_of(checkpoints, manifest.step)
    temporary = final.with_suffix(".tmp")
    try:
        _write_synced(temporary / MANIFEST, [json_sealed(manifest.__dict__).encode()])
        _sync_directory(temporary)
        if final.exists():
            _remove(final, ".old")
        temporary.rename(final)
        _sync_directory(checkpoints)
        own = [path for path in steps_of(checkpoints) if step_of(path) <= manifest.step]
        kept = {*own[-keep:], *(path for path in own if step_of(path) == best)}
        for path in {*steps_of(checkpoints)} - kept:
            _remove(path)
        for left in [*checkpoints.glob("step-*.tmp"), *checkpoints.glob("step-*.old")]:  # by who was killed
            if STEP.fullmatch(left.stem) and step_of(left.with_suffix("")) < manifest.step:
                shutil.rmtree(left)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritable(temporary, error) from error
    return final


def _remove(checkpoint: Path, suffix: str = ".tmp") -> None:
    """Removes a checkpoint so that a kill in the middle of it leaves no half checkpoint under a whole one's name."""
    doomed = checkpoint.with_suffix(suffix)
    if doomed.exists():
        shutil.rmtree(doomed)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def export(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """The trained model as one safetensors file with its own checksum, whole or not at all. Returns the checksum."""
    temporary = path.with_suffix(".tmp")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    users = Counter(map(storage_key, plain.values()))  # a buffer may be a view of a parameter, which no file can say
    own = {name: each.clone() if users[storage_key(each)] > 1 else each for name, each in plain.items()}
    data, digest = seal(safetensors.torch.save(own, {KEY: BLANK}))
    try:
        _write_synced(temporary, [data])
        temporary.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    return digest


def export_apart(folder: Path, apart: Apart) -> None:
    """Writes the files that peft and similar libraries read: a safetensors file, and JSON beside it."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    export(folder / f"{apart.kind}_model.safetensors", apart.tensors)
    write_atomically(folder / f"{apart.kind}_config.json", json.dumps(apart.config, indent=2) + "\n")


def read_manifest(checkpoint: Path) -> Manifest:
    """Raises `CorruptCheckpointError` unless the manifest is as it was written, and every file is what it says."""
    try:
        text = read_text(checkpoint / MANIFEST)
        plain = parse_json(text)
    except OSError as error:
        raise corrupt(checkpoint, MANIFEST, f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise corrupt(checkpoint, MANIFEST, str(error)) from None
    if not isinstance(plain, dict) or KEY not in plain:
        raise corrupt(checkpoint, MANIFEST, "has no checksum of its own: it is damaged, or older than these are")
    if not json_is_whole(text):
        raise corrupt(checkpoint, MANIFEST, "is not as it was written: its checksum is another one")
    try:
        manifest = Manifest(**{key: value for key, value in plain.items() if key != KEY})
    except TypeError:
        raise corrupt(checkpoint, MANIFEST, "has other keys than a manifest") from None
    if (why := _wrong(manifest)) is not None:
        raise corrupt(checkpoint, MANIFEST, why)
    if manifest.step != step_of(checkpoint):
        raise corrupt(checkpoint, MANIFEST, f"is of step {manifest.step}, and its folder is of another one")
    for name, expected in manifest.files.items():
        _check_file(checkpoint, name, expected)
    return manifest


def _wrong(manifest: Manifest) -> str | None:
    """Returns which value of a manifest has another type than it must have."""
    files, reached = manifest.files, manifest.time_to_accuracy
    for key in ("step", "phase"):
        if type(value := getattr(manifest, key)) is not int:
            return f"has {key}={value!r}, which is no whole number"
    if not isinstance(manifest.strategy, dict | None):
        return f"has strategy={manifest.strategy!r}, which is no choice"
    for key in ("workers", "batch_size"):
        if (value := getattr(manifest, key)) is not None and (type(value) is not int or value < 1):
            return f"has {key}={value!r}, which is no whole number above 0"
    if not isinstance(manifest.seconds, int | float) or not isinstance(reached, int | float | None):
        return "has times that are no numbers"
    if not isinstance(files, dict) or not files or not all(map(PART.fullmatch, files)):
        return "does not name the checkpoint's files"
    data = {} if manifest.data is None else manifest.data
    if not isinstance(data, dict):
        return "does not name the files of data"
    if not isinstance(manifest.callbacks, dict | None):
        return "has no states of callbacks where they should be"
    if not all(isinstance(digest, str) for digest in (*files.values(), *data.values(), manifest.run)):
        return "has checksums that are no texts"
    return None


def read_parameters(checkpoint: Path) -> dict[str, Tensor]:
    """The whole model's state, where replicas differ replica 0's. Raises `CorruptCheckpointError`."""
    return SavedParts(open_parts(checkpoint, read_manifest(checkpoint))).parameters()


def read_shapes(checkpoint: Path) -> dict[str, list[int]]:
    """Returns the shapes of the tensors of `read_parameters`. Raises `CorruptCheckpointError`."""
    return SavedParts(open_parts(checkpoint, read_manifest(checkpoint))).shapes()


def open_parts(checkpoint: Path, manifest: Manifest) -> list[State]:
    """Returns the states of replica 0's parts, with tensors that are read when they are used.

    Raises `CorruptCheckpointError`.
    """
    return [_opened(checkpoint, file_of(part, 0), manifest) for part in range(manifest.parts)]


def open_replicas(checkpoint: Path, part: int, manifest: Manifest) -> list[State]:
    """Returns a part's state of each replica that wrote all of it, as `open_parts` does. Raises
    `CorruptCheckpointError`.
    """
    found = [(name, PART.fullmatch(name)) for name in sorted(manifest.files)]
    every = [_opened(checkpoint, name, manifest) for name, each in found if each is not None and int(each[1]) == part]
    return [state for state in every if "parameters" in state]


def open_part(checkpoint: Path, part: int, replica: int, manifest: Manifest) -> State:
    """Returns one part's state as `open_parts` does: the replica's own, completed by what replica 0 wrote for all.
    Raises `CorruptCheckpointError`.
    """
    name = file_of(part, replica)
    own = _opened(checkpoint, name, manifest) if name in manifest.files else {}
    if "parameters" in own:
        return own
    state, buffers = _opened(checkpoint, file_of(part, 0), manifest), own.pop("buffers", {})
    return {**state, **own, "parameters": {**state["parameters"], **buffers}}


def read_part(checkpoint: Path, part: int, replica: int, manifest: Manifest) -> State:
    """Returns the state of `open_part` with its tensors read. Raises `CorruptCheckpointError`."""
    return read_all(open_part(checkpoint, part, replica, manifest))


def _opened(checkpoint: Path, name: str, manifest: Manifest) -> State:
    if name not in manifest.files:
        raise corrupt(checkpoint, name, "is not in the manifest")
    _check_file(checkpoint, name, manifest.files[name])
    try:
        return in_file(checkpoint / name)
    except ValueError as error:
        raise corrupt(checkpoint, name, str(error)) from None


def _check_file(checkpoint: Path, name: str, expected: str) -> None:
    try:
        with open_regular(checkpoint / name) as file:
            read_header(file)
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise corrupt(checkpoint, name, f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise corrupt(checkpoint, name, str(error)) from None
    if found != expected:
        raise corrupt(checkpoint, name, "does not have the SHA-256 of its manifest")


def corrupt(checkpoint: Path, name: str, why: str) -> CorruptCheckpointError:
    """Returns the error of a checkpoint whose file `name` is damaged."""
    run, steps = checkpoint.parent.parent.name, steps_of(checkpoint.parent)
    before = [path.name for path in steps if step_of(path) < step_of(checkpoint)]
    hint = f"; the one before is {before[-1]} (--resume {run}@{before[-1]}, or weights=...)" if before else ""
    return CorruptCheckpointError(f"{checkpoint / name} {why}{hint}")


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}: {why_unwritten(error)}; earlier checkpoints are kept")


def _write_synced(path: Path, blocks: Iterable[bytes | memoryview]) -> None:
    with os.fdopen(open_to_write(path, os.O_TRUNC), "wb") as file:
        file.writelines(blocks)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
