"""Folders that code is loaded from are nobody else's, from the root on."""

import os
import stat
from pathlib import Path

import pytest

from paceline.comm import native
from paceline.comm import private as room
from paceline.comm.private import NotPrivateError, private


def test_what_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private(tmp_path / "a/b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.parametrize("at", ["cache", "cache/paceline", "cache/paceline/native"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, mode: int
) -> None:
    monkeypatch.setattr(room, "_is_own_group", lambda _: False)
    folder = tmp_path / "cache/paceline/native"
    private(folder)
    (tmp_path / at).chmod(mode)
    with pytest.raises(NotPrivateError, match=f"{at} can be written by other users"):
        private(folder)


def test_a_sticky_folder_will_do_above_one_of_ones_own_and_not_as_the_last(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    private(tmp_path / "mine")
    with pytest.raises(NotPrivateError):
        private(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_folder_is_refused_below_a_sticky_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o1777)
    folder = tmp_path / "paceline/native"
    private(folder)
    os.chown(folder.parent, 12345, 12345)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        private(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.load.cache_clear()
    assert native.load("all_reduce") is None
    native.load.cache_clear()


def test_the_path_is_without_links_which_others_could_change(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there")
    assert private(tmp_path / "link/in") == tmp_path.resolve() / "there/in"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        private(tmp_path / "loop" / "in")


def test_a_group_of_one_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.stat_result((0o40770, 0, 0, 0, 0, os.getgid(), 0, 0, 0, 0))
    for is_own in (True, False):
        monkeypatch.setattr(room, "_is_own_group", lambda _, own=is_own: own)
        assert room.others_may_write(found) is not is_own


@pytest.mark.parametrize("kind", ["link", "writable"])
def test_a_library_that_is_not_the_users_is_not_loaded(tmp_path: Path, kind: str) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    library.chmod(0o666)
    if kind == "link":
        library.chmod(0o600)
        library = tmp_path / "link.so"
        library.symlink_to("library.so")
    with pytest.raises(NotPrivateError):
        native._loaded(library)
