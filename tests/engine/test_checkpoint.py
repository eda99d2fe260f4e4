"""A checkpoint is whole or is not there; what is damaged is named."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from paceline.engine.base import checkpoint
from paceline.engine.base.checkpoint import (
    Manifest,
    commit,
    export,
    open_replicas,
    read_manifest,
    read_part,
    steps_of,
    write_part,
)
from paceline.engine.base.errors import CorruptCheckpointError
from paceline.strategies import State
from paceline.strategies.core.state import ShardedTensor
from paceline.tracking.checksums import json_sealed, verdict_on_tensors
from paceline.tracking.errors import StorageError
from paceline.tracking.files import UnusableFileError


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def state(step: int) -> dict[str, object]:
    return {"parameters": {"w": torch.full((3,), float(step))}, "sync": {"optimizer": {"state": {0: {"step": step}}}}}


def save(checkpoints: Path, step: int, keep: int = 10) -> Path:
    sums = dict([write_part(checkpoints, step, part, 0, state(step)) for part in range(2)])
    return commit(checkpoints, Manifest(step, 1.5, None, sums, "abc"), keep)


def test_what_is_read_is_what_was_written(checkpoints: Path) -> None:
    path = save(checkpoints, 7)
    manifest = read_manifest(path)
    assert (manifest.step, manifest.seconds, manifest.time_to_accuracy) == (7, 1.5, None)
    for part in range(2):
        read = read_part(path, part, 0, manifest)
        assert torch.equal(read["parameters"]["w"], torch.full((3,), 7.0))
        assert read["sync"] == {"optimizer": {"state": {0: {"step": 7}}}}


def test_a_replica_with_buffers_of_its_own_has_replica_0s_weights(checkpoints: Path) -> None:
    whole: State = {"parameters": {"w": torch.ones(3), "seen": torch.zeros(1)}, "sync": {}, "place": 0}
    own = {"buffers": {"seen": torch.ones(1)}, "place": 1}
    sums = dict([write_part(checkpoints, 7, 0, 0, whole), write_part(checkpoints, 7, 0, 1, own)])
    path = commit(checkpoints, Manifest(7, 1.5, None, sums, "abc"), 1)
    manifest = read_manifest(path)
    states = [read_part(path, 0, replica, manifest) for replica in range(3)]
    assert [(float(each["parameters"]["seen"]), each["place"]) for each in states] == [(0, 0), (1, 1), (0, 0)]
    assert all(torch.equal(each["parameters"]["w"], torch.ones(3)) and each.keys() == whole.keys() for each in states)
    assert manifest.parts == len(open_replicas(path, 0, manifest)) == 1


@pytest.mark.parametrize("name", ["part-000.safetensors", "part-001.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["bit", "cut", "emptied", "gone"])
def test_any_damage_is_noticed_and_the_file_and_the_checkpoint_before_are_named(
    checkpoints: Path, name: str, damage: str
) -> None:
    save(checkpoints, 4)
    path = save(checkpoints, 8)
    save(checkpoints, 12)
    file = path / name
    content = file.read_bytes()
    match damage:
        case "bit":
            file.write_bytes(content[:-2] + bytes([content[-2] ^ 64]) + content[-1:])
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "emptied":
            file.write_bytes(b"")
        case _:
            file.unlink()
    with pytest.raises(CorruptCheckpointError) as caught:
        manifest = read_manifest(path)
        read_part(path, 0, 0, manifest)
    assert caught.value.exit_code == 7
    assert str(caught.value).startswith(str(file))
    assert str(caught.value).endswith("the one before is step-00000004 (--resume mine@step-00000004, or weights=...)")


def test_a_file_grown_by_holes_is_refused_without_hashing_it(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = save(checkpoints, 4) / "part-001.safetensors"
    export(weights := tmp_path / "model.safetensors", {"w": torch.ones(3)})
    sizes = [file.stat().st_size for file in (part, weights)]
    for file in (part, weights):
        os.truncate(file, 64 << 30)
    hashed: list[Path] = []
    monkeypatch.setattr(hashlib, "file_digest", lambda file, _: hashed.append(file))
    monkeypatch.setattr(hashlib, "sha256", hashed.append)
    with pytest.raises(CorruptCheckpointError, match=f"has 68,719,476,736 bytes, and its header says {sizes[0]:,}"):
        read_part(part.parent, 1, 0, Manifest(4, 1.5, None, {part.name: "abc"}, "abc"))
    with pytest.raises(UnusableFileError, match=f"has 68,719,476,736 bytes, and its header says {sizes[1]:,}"):
        verdict_on_tensors(weights)
    assert not hashed


def test_without_an_earlier_checkpoint_none_is_offered(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    save(checkpoints, 8)
    (path / "manifest.json").unlink()
    with pytest.raises(CorruptCheckpointError) as caught:
        read_manifest(path)
    assert "--resume" not in str(caught.value)


def test_a_part_that_the_manifest_does_not_know_is_refused(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    with pytest.raises(CorruptCheckpointError, match=r"part-002\.safetensors is not in the manifest"):
        read_part(path, 2, 0, read_manifest(path))


def test_a_manifest_of_other_keys_is_refused(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    (path / "manifest.json").write_text(json_sealed({"step": 4, "surprise": 1}))
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json has other keys"):
        read_manifest(path)


def sealed_with(path: Path, **changed: object) -> None:
    """The manifest with other values and a checksum that fits them."""
    file = path / "manifest.json"
    plain = {key: value for key, value in json.loads(file.read_text()).items() if key != "sha256"}
    file.write_text(json_sealed({**plain, **changed}))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"step": "x"}, "no whole number"),
        ({"step": True}, "no whole number"),
        ({"workers": -2}, "workers=-2, which is no whole number above 0"),
        ({"batch_size": 0}, "batch_size=0, which is no whole number above 0"),
        ({"step": 6}, "of step 6, and its folder is of another one"),
        ({"files": []}, "does not name the checkpoint's files"),
        ({"files": {}}, "does not name the checkpoint's files"),
        ({"files": {"../../config.yaml": "0"}}, "does not name the checkpoint's files"),
        ({"files": {"part-000.safetensors": 1}}, "checksums that are no texts"),
        ({"run": None}, "checksums that are no texts"),
        ({"seconds": "soon"}, "times that are no numbers"),
    ],
    ids=str,
)
def test_a_manifest_that_fits_its_checksum_and_says_nonsense_is_refused(
    checkpoints: Path, changed: dict[str, object], why: str
) -> None:
    path = save(checkpoints, 4)
    sealed_with(path, **changed)
    with pytest.raises(CorruptCheckpointError, match=why) as caught:
        read_manifest(path)
    assert str(path / "manifest.json") in str(caught.value)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b"\xff{}", b"[]", b"null"])
def test_a_manifest_that_is_no_json_object_is_refused(checkpoints: Path, content: bytes) -> None:
    path = save(checkpoints, 4)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json (is|has|holds) "):
        read_manifest(path)


def test_no_byte_of_a_manifest_can_change_unnoticed(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    file = path / "manifest.json"
    content = file.read_bytes()
    for i in range(len(content)):
        file.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        with pytest.raises(CorruptCheckpointError):
            read_manifest(path)
    file.write_bytes(content + b"\n")
    with pytest.raises(CorruptCheckpointError):
        read_manifest(path)


def test_a_manifest_without_a_checksum_of_its_own_is_refused(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    file = path / "manifest.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "sha256"}))
    with pytest.raises(CorruptCheckpointError, match="no checksum of its own"):
        read_manifest(path)


@pytest.mark.parametrize("name", ["part-000.safetensors", "manifest.json"])
def test_a_pipe_in_the_place_of_a_checkpoints_file_is_not_waited_for(checkpoints: Path, name: str) -> None:
    path = save(checkpoints, 4)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(CorruptCheckpointError, match=f"{name} is a named pipe"):
        read_manifest(path)


def test_what_is_named_like_a_checkpoint_and_is_none_is_passed_over(checkpoints: Path) -> None:
    path = save(checkpoints, 4)
    for name in ("step-x", "step-", "step-00000009.tmp"):
        (checkpoints / name).mkdir()
    assert steps_of(checkpoints) == [path]


def test_no_byte_of_an_exported_model_can_change_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    digest = export(path, {"w": torch.arange(4.0), "b": torch.ones(1)})
    assert verdict_on_tensors(path) == ("whole", digest)
    assert torch.equal(safetensors.torch.load_file(path)["w"], torch.arange(4.0))
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        try:
            assert verdict_on_tensors(path)[0] != "whole", f"byte {i}"
        except ValueError:
            pass  # no safetensors file any more


def test_a_crash_before_the_manifest_leaves_the_previous_checkpoint_the_newest(checkpoints: Path) -> None:
    before = save(checkpoints, 4)
    write_part(checkpoints, 8, 0, 0, state(8))
    assert steps_of(checkpoints) == [before]
    assert read_manifest(before).step == 4
    after = save(checkpoints, 8)  # the resumed run comes to step 8 again
    assert steps_of(checkpoints) == [before, after]
    assert not list(checkpoints.glob("*.tmp"))


def test_a_crash_at_any_file_operation_leaves_a_whole_checkpoint(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail at the n-th fsync or rename of saving step 8, for every n, as a crash would: nothing after it happens."""

    class Crash(BaseException):
        pass

    def counted(function: object, left: list[int]) -> object:
        def call(*arguments: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise Crash
            return function(*arguments)  # pyright: ignore[reportCallIssue]

        return call

    n = 0
    while True:
        n += 1
        save(checkpoints, 4, keep=1)
        left = [n]
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.os, "fsync", counted(checkpoint.os.fsync, left))
            patch.setattr(Path, "rename", counted(Path.rename, left))
            patch.setattr(checkpoint.shutil, "rmtree", counted(checkpoint.shutil.rmtree, left))
            try:
                save(checkpoints, 8, keep=1)
            except Crash:
                pass
        newest = steps_of(checkpoints)[-1]
        assert read_manifest(newest).step in (4, 8)
        if left[0] > 0:
            break
    assert n > 6  # two parts, the manifest, two directories, the rename


def test_only_the_last_so_many_stay(checkpoints: Path) -> None:
    for step in (2, 4, 6, 8):
        save(checkpoints, step, keep=2)
    assert [read_manifest(path).step for path in steps_of(checkpoints)] == [6, 8]


def test_a_run_resumed_from_an_earlier_checkpoint_keeps_its_own_and_drops_those_of_its_other_future(
    checkpoints: Path,
) -> None:
    for step in (2, 4, 6, 8):
        save(checkpoints, step)
    save(checkpoints, 5, keep=2)  # resumed from 4
    assert [read_manifest(path).step for path in steps_of(checkpoints)] == [4, 5]


@pytest.mark.parametrize("operation", ["write", "commit"])
def test_a_full_disk_is_the_machines_error_and_leaves_no_half_checkpoint(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    before = save(checkpoints, 4)
    digest = dict([write_part(checkpoints, 8, 0, 0, state(8))])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device; earlier checkpoints are kept") as caught:
        if operation == "write":
            write_part(checkpoints, 8, 1, 0, state(8))
        else:
            commit(checkpoints, Manifest(8, 1.0, None, digest, "abc"), 10)
    assert caught.value.exit_code == 3
    assert list(checkpoints.iterdir()) == [before]


def test_on_a_full_disk_a_worker_still_gathers_what_others_send(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[int] = []

    def sharded(i: int) -> ShardedTensor:
        return ShardedTensor((1 << 16,), torch.float32, lambda: gathered.append(i) or torch.ones(1 << 16))

    def full(file: Any, blocks: Iterator[bytes]) -> None:
        for _ in range(2):
            next(blocks)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_synced", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_part(checkpoints, 8, 0, 0, {"parameters": {}, "sync": {str(i): sharded(i) for i in range(5)}})
    assert gathered == [0, 1, 2, 3, 4]


def test_an_exported_model_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    export(path, {"w": torch.ones(2)})
    content = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(StorageError):
        export(path, {"w": torch.zeros(2)})
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("steps", [(4, 8, 12), (4, 4)], ids=["the oldest goes", "a step is saved again"])
def test_whoever_is_killed_while_it_removes_a_checkpoint_leaves_whole_ones(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...]
) -> None:
    for step in steps[:-1]:
        save(checkpoints, step, keep=2)
    rmtree = checkpoint.shutil.rmtree

    def killed(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(checkpoint.shutil, "rmtree", killed)
        save(checkpoints, steps[-1], keep=2)
    for path in steps_of(checkpoints):
        read_manifest(path)
    assert checkpoint.shutil.rmtree is rmtree
    save(checkpoints, steps[-1], keep=2)
    assert [read_manifest(path).step for path in steps_of(checkpoints)] == sorted({*steps[-2:]})
    save(checkpoints, 16, keep=2)
    assert all(path in steps_of(checkpoints) for path in checkpoints.iterdir()), "what was half removed is gone"
