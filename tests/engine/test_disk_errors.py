"""Whichever change of a run's or a sweep's files a disk refuses: exit status 3, with the file and the reason."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy.exc import OperationalError

from paceline.engine.base.checkpoint import Manifest, commit, export, write_part
from paceline.engine.base.failures import exit_code_of, lack_of
from paceline.sweep.define import define
from paceline.sweep.directory import open_sweep
from paceline.sweep.storage import stored
from paceline.tracking.errors import StorageError
from paceline.tracking.run_directory import RunDirectory

REASONS = (errno.EROFS, errno.EDQUOT, errno.EIO)  # a full disk is as a quota
CHANGES = ("open", "mkdir", "replace", "rename", "unlink", "rmdir", "write", "fsync")


def a_run(root: Path) -> None:
    run = RunDirectory.create(root, "mine")
    run.write_environment({})
    run.write_config("a: 1\n")
    run.append({"kind": "start"})
    run.close()
    RunDirectory(run.path).append({"kind": "resume"})
    run.write_summary({"name": "mine"})
    run.forget_summary()


def checkpoints(root: Path) -> None:
    for step in (2, 4):
        name, digest = write_part(root, step, 0, 0, {"parameters": {"w": torch.ones(2)}, "sync": {}})
        commit(root, Manifest(step, 1.0, None, {name: digest}, "abc"), 1)
    export(root / "model.safetensors", {"w": torch.ones(2)})


def a_sweep(root: Path) -> None:
    for resumes in (False, True):
        with open_sweep("swept", define(["sync=bsp,ssp"]), root, resumes):
            pass


class Disk:
    """Refuses the change number `at` below `root`, counted from 0."""

    def __init__(self, root: Path, at: int, reason: int) -> None:
        self.root, self.at, self.reason, self.count = root, at, reason, 0

    def guard(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
            where = Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else os.fspath(path)
            reads = name == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if Path(where).is_relative_to(self.root) and not reads:
                self.count += 1
                if self.count == self.at + 1:
                    told = () if isinstance(path, int) else (where,)
                    raise OSError(self.reason, os.strerror(self.reason), *told)
            return original(path, *args, **kwargs)

        return guarded


@pytest.mark.parametrize("reason", REASONS, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "change", [a_run, checkpoints, pytest.param(a_sweep, marks=pytest.mark.slow)], ids=lambda change: change.__name__
)
def test_each_change_that_a_disk_refuses_is_exit_status_3_with_the_file_and_the_reason(
    change: Callable[[Path], None], reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    for at in range(100):
        root = tmp_path / str(at)
        root.mkdir()
        disk = Disk(root, at, reason)
        with monkeypatch.context() as patched:
            for name in CHANGES:
                patched.setattr(os, name, disk.guard(name, getattr(os, name)))
            try:
                change(root)
            except Exception as error:
                refused.append(error)
        if disk.count <= at:
            break
    assert at > 5 and len(refused) > at // 2, (at, refused)  # tidying up may go wrong without a word
    for error in refused:
        lack = error if exit_code_of(error) is not None else lack_of(error)
        assert lack is not None and exit_code_of(lack) == 3, repr(error)
        assert os.strerror(reason) in str(lack) and str(tmp_path) in str(lack), str(lack)


def test_where_sqlite_cannot_open_its_database_what_to_look_at_is_said() -> None:
    spent = OperationalError("SELECT 1", None, Exception("unable to open database file"))
    said = r"study.db: unable to open database file \(is the disk full, out of inodes or read-only\?\)"
    with pytest.raises(StorageError, match=said), stored("sqlite:////runs/mine/study.db"):
        raise spent
