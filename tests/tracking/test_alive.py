"""A run goes on as long as its launcher lives, and no longer."""

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from paceline.engine.jobs.submission import alone
from paceline.tracking.alive import held, is_held
from paceline.tracking.errors import RunNameError, StorageError
from paceline.tracking.run_directory import RunDirectory, locked


def test_a_forked_child_that_outlives_the_launcher_does_not_keep_the_run_going(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.touch()
    reader, writer = os.pipe()
    with held(file):
        assert is_held(file)
        if not (child := os.fork()):
            os.close(writer)
            os.read(reader, 1)  # until its parent has ended, or goes on below
            os._exit(0)
        assert is_held(file)
    try:
        assert not is_held(file)
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def denied() -> NoReturn:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_of_two_launchers_of_one_run_the_second_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "metrics.jsonl"
    file.parent.mkdir()
    file.touch()
    with held(file):
        with pytest.raises(RunNameError, match="run mine goes on, and cannot be resumed beside itself"), held(file):
            pass
        assert is_held(file)
    with held(file):
        pass


def test_a_run_that_others_may_only_read_is_seen_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    file.touch()
    with held(file):
        os_open = os.open
        monkeypatch.setattr(os, "open", lambda path, flags: denied() if flags & os.O_RDWR else os_open(path, flags))
        assert is_held(file)
    assert not is_held(file)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_no_run_is_seen_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int, how: int) -> NoReturn:
        raise OSError(number, os.strerror(number))

    file = tmp_path / "metrics.jsonl"
    file.touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with held(file):
        assert not is_held(file)
    with alone(RunDirectory(tmp_path)):  # a run may be submitted once more
        pass
    with pytest.raises(StorageError, match=r"lock: cannot be locked \(.*\)\. Choose a folder on .*locks"):
        locked(tmp_path / "lock").__enter__()  # a sweep, whose trials would run twice


def test_a_lock_asks_no_more_of_nfs_than_the_file_is_open_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock(2): over NFS, an exclusive lock takes a file that is open for writing."""
    flock = fcntl.flock

    def of_nfs(descriptor: int, how: int) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if (flags == os.O_RDONLY and how & fcntl.LOCK_EX) or (flags == os.O_WRONLY and how & fcntl.LOCK_SH):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    file = tmp_path / "metrics.jsonl"
    file.touch()
    monkeypatch.setattr(fcntl, "flock", of_nfs)
    with held(file):
        assert is_held(file)
    assert not is_held(file)
