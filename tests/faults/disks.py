"""Disks that are full, out of inodes or read-only, in mount namespaces of their own."""

import random
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

from paceline.engine.base.checkpoint import read_manifest, steps_of

from .judge import Case, WrongError
from .launched import NAME, SMALL, Launched, train

MORE = ("model.hidden=[256]", "checkpoint.every_steps=2", "checkpoint.keep=1000", "steps=60")
FULL = re.compile(r"No space left|disk|full|free|space|inode|write|shared memory|Read-only|read-only")


@cache
def allowed() -> bool:
    """Whether this machine lets us mount in a namespace of our own."""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(probe, capture_output=True).returncode


def cases(chance: random.Random, count: int) -> list[Case]:
    """None where this machine does not allow mounts, which is said."""
    if not allowed():
        print("disks: none tried, as this machine does not allow mount namespaces (unshare -rm)", file=sys.stderr)
        return []
    found: list[Case] = []
    for number in range(count):
        match number % 8:
            case 0 | 1:
                size = chance.randrange(16, 2500)
                found.append(Case("run directory's disk full", f"{size} KiB", partial(_runs, f"size={size}k")))
            case 2:
                inodes = chance.randrange(3, 60)
                found.append(Case("run directory's inodes used up", f"{inodes}", partial(_runs, f"nr_inodes={inodes}")))
            case 3:
                size = chance.randrange(4, 64)
                found.append(Case("shared memory full", f"{size} KiB, hogwild", partial(_shared_memory, size)))
            case 4:
                what = chance.choice(["ro", *(f"nr_inodes={free}" for free in range(16))])
                found.append(Case("resumed on a spent disk", what, partial(_resumed, what)))
            case 5:
                what = chance.choice(["ro", *(f"nr_inodes={free}" for free in range(1, 32))])
                found.append(Case("sweep's disk spent", what, partial(_swept, what)))
            case 6:
                what = chance.choice([f"nr_inodes={free}" for free in range(8, 32)])
                found.append(Case("disk spent, W&B offline", what, partial(_mirrored, what)))
            case _:
                what = chance.choice(["size=4k", "nr_inodes=2", "ro"])
                found.append(Case("TMPDIR unusable", what, partial(_temporary, what)))
    return found


def _mounted(directory: Path, options: str, after: str = "") -> list[str]:
    place = shlex.quote(str(directory))
    return [
        "unshare",
        "-rm",
        "sh",
        "-c",
        f'mount -t tmpfs -o {options} tmpfs {place}; "$@"; code=$?; {after} exit $code',
        "sh",
    ]


def _runs(options: str, place: Path) -> None:
    runs, kept = place / "runs", place / "kept"
    runs.mkdir()
    copy = f"cp -r {shlex.quote(str(runs))} {shlex.quote(str(kept))};"
    launched = train(place, *MORE, prefix=_mounted(runs, options, copy))
    _is_explained(launched, launched.ends({0, 3}))
    for checkpoint in steps_of(kept / NAME / "checkpoints"):
        read_manifest(checkpoint)


def _resumed(options: str, place: Path) -> None:
    """`nr_inodes`: so many more than the run has."""
    runs, made = place / "runs", place / "made"
    train(place, "steps=10").ends({0})
    runs.rename(made)
    runs.mkdir()
    if options != "ro":
        options = f"nr_inodes={len(list(made.rglob('*'))) + 1 + int(options.partition('=')[2])}"
    there, mount = shlex.quote(str(runs)), _mounted(runs, "size=64m")
    mount[4] = mount[4].replace(
        '"$@"', f'cp -a {shlex.quote(str(made))}/. {there}; mount -o remount,{options} {there}; "$@"', 1
    )
    launched = Launched(place, ["train", "--resume", NAME, "--allow-module", "trouble", "steps=20"], mount)
    _is_explained(launched, launched.ends({0, 3}))


def _swept(options: str, place: Path) -> None:
    (place / "runs").mkdir()
    words = ["sweep", *SMALL, "model.hidden=[32]", "steps=6", "optimizer.lr=0.1,0.2", "--name", "swept"]
    launched = Launched(place, words, _mounted(place / "runs", options))
    _is_explained(launched, launched.ends({0, 3}))


def _mirrored(options: str, place: Path) -> None:
    """W&B may fail; what it says is no traceback, and the run is judged by its own files."""
    (place / "runs").mkdir()
    words = ("steps=10", "tracking=wandb", "tracking.mode=offline")
    launched = train(place, *words, prefix=_mounted(place / "runs", options))
    _is_explained(launched, launched.ends({0, 3}))


def _shared_memory(size: int, place: Path) -> None:
    listing = place / "listing"
    script = _mounted(Path("/dev/shm"), f"size={size}k", f"ls -A /dev/shm > {shlex.quote(str(listing))};")
    launched = train(place, "sync=hogwild", "model.hidden=[64]", "steps=10", prefix=script)
    _is_explained(launched, launched.ends({0, 3}))
    if listing.read_text():
        raise WrongError(f"left in /dev/shm: {listing.read_text()}")


def _temporary(options: str, place: Path) -> None:
    scratch = place / "scratch"
    scratch.mkdir()
    prefix = [*_mounted(scratch, options), "env", f"TMPDIR={scratch}"]
    launched = train(place, "steps=10", prefix=prefix)
    _is_explained(launched, launched.ends({0, 3}))


def _is_explained(launched: Launched, status: int) -> None:
    if status == 3 and not FULL.search(launched.last_line()):
        raise WrongError(f"does not say what is full: {launched.last_line()!r}")
