"""The four parts of the tests are all run, whichever of them fails, and together they are all tests."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from needs import needs_make

ROOT = Path(__file__).parent.parent
MARKS = ("slow", "fault", "browser")


def make(target: str, told: Path, fails: str) -> int:
    """The exit status of `make target`, with a script for pytest, which notes its -m and fails where `fails` is it."""
    script = told.with_name("pytest.sh")
    script.write_text(f'echo "$2" >>{told}\ntest "$2" != "{fails}"\n')
    command = ["make", "--old-file=.venv/.ready", target, f"PYTEST=sh {script}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode


@needs_make
def test_every_part_runs_whichever_fails_and_the_exit_status_tells(tmp_path: Path) -> None:
    assert make("test-all", tmp_path / "none", fails="") == 0
    parts = (tmp_path / "none").read_text().splitlines()
    assert len(parts) == 4
    for number, part in enumerate(parts):
        assert make("test-all", tmp_path / str(number), fails=part) != 0
        assert (tmp_path / str(number)).read_text().splitlines() == parts


@needs_make
def test_each_test_is_in_one_part(tmp_path: Path) -> None:
    make("test-all", tmp_path / "told", fails="")
    parts = (tmp_path / "told").read_text().splitlines()
    for has in product([False, True], repeat=len(MARKS)):
        marked = dict(zip(MARKS, has, strict=True))
        assert sum(eval(part, None, marked) for part in parts) == 1, marked


@pytest.mark.parametrize("part", ["test-fault", "test-browser", "test-slow SAMPLE="])
def test_ci_runs_it(part: str) -> None:
    run = " ".join((ROOT / ".ci" / "run").read_text().split())
    assert part in run and "--keep-going check test " in run
