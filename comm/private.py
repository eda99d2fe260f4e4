"""Folders that nobody else can change, or exchange for another: code is loaded from no other."""

import grp
import os
import pwd
import stat
from pathlib import Path


class NotPrivateError(OSError):
    """Another user could put a file of his own there."""


def user_cache(name: str) -> Path:
    """Returns the folder `name` of what this user's runs keep. Raises `RuntimeError` where there is no home."""
    given = Path(os.environ.get("XDG_CACHE_HOME") or "")
    home = given if given.is_absolute() else Path("~/.cache").expanduser()  # as the XDG specification wants it
    return home / "paceline" / name


def private(folder: Path) -> Path:
    """Returns `folder` without links in its path; what is missing of it is made, for this user alone.

    Goes down from the root by descriptors and follows no link that is put there meanwhile. Each folder on the way must
    be root's or the user's. Others may write one only if it is sticky, as /tmp is: they cannot rename what is in it. So
    nobody else can make the path lead elsewhere afterwards.

    Raises `NotPrivateError`, and other `OSError` where there is no such place.
    """
    path = Path(os.path.realpath(folder))
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for at in [*reversed(path.parents[:-1]), path]:
            above, descriptor = descriptor, _enter(descriptor, at.name)
            os.close(above)
            _check(os.fstat(descriptor), at, last=at == path)
    finally:
        os.close(descriptor)
    return path


def _enter(descriptor: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=descriptor)
    except FileNotFoundError:
        try:
            os.mkdir(name, 0o700, dir_fd=descriptor)
        except FileExistsError:  # another process of ours made it; whose it is, is checked
            pass
        return os.open(name, flags, dir_fd=descriptor)


def _check(found: os.stat_result, at: Path, last: bool) -> None:
    if found.st_uid != os.geteuid() and (last or found.st_uid != 0):
        raise NotPrivateError(f"{at} belongs to another user")
    if others_may_write(found) and (last or not found.st_mode & stat.S_ISVTX):
        raise NotPrivateError(f"{at} can be written by other users")


def others_may_write(found: os.stat_result) -> bool:
    """Returns True if others than owner and root may. The group of one that systems give a user is the owner."""
    by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    return bool(found.st_mode & stat.S_IWOTH or by_group)


def _is_own_group(gid: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == gid and not {*group.gr_mem} - {user.pw_name}
