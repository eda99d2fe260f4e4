"""Files that make setup installs from: a pinned version of everything, and its hashes."""

import re
from pathlib import Path

from locking import LOCKED, blocks

ROOT = Path(__file__).parents[1]
LOCKS = {file.stem: file.read_text() for file in LOCKED.glob("*.txt")}


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text.lower())


def test_every_requirement_is_pinned_with_hashes_and_stands_once() -> None:
    found = [(name, text) for kind, lock in LOCKS.items() if kind != "torch-cpu" for name, text in blocks(lock).items()]
    assert len(found) > 150 and len({name for name, _ in found}) == len(found)
    for name, text in found:
        assert re.match(r"[^\s=]+==[^\s=]+", text) and "--hash=sha256:" in text, name
    assert "://" not in "".join(LOCKS.values()), "where files come from is for the installer to know"


def test_the_versions_are_those_of_the_constraints() -> None:
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    names = [name_of(line.partition("==")[0]) for line in pinned]
    assert len(set(names)) == len(names)
    locked = {name_of(name): text for lock in LOCKS.values() for name, text in blocks(lock).items()}
    for line, name in zip(pinned, names, strict=True):
        assert re.match(rf"[^=]+=={re.escape(line.partition('==')[2])}(\+cpu)?\s", locked[name]), line
    assert "setuptools" in locked and "pip" in locked
