"""`paceline init`: what it writes runs, and it writes over nothing."""

import re
import shlex
import sys
from pathlib import Path

import pytest

FILES = {
    "README.md",
    "conf/data/mine.yaml",
    "conf/model/mine.yaml",
    "mine/__init__.py",
    "mine/data.py",
    "mine/model.py",
    "test_mine.py",
}


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def forgotten():
    """The starter's package is imported anew by others that have one of that name."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "test_mine")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
def test_the_starter_folder_can_be_trained_and_its_own_test_passes(paceline, here: Path, monkeypatch) -> None:
    ended = paceline("init", "project")
    assert ended.status == 0 and written(here / "project") == FILES
    assert {line.removeprefix("project/") for line in ended.out.splitlines()} == FILES
    command = next(line for line in ended.err.splitlines() if line.startswith("train it:")).partition(" && ")[2]
    monkeypatch.chdir(here / "project")
    trained = paceline(*shlex.split(command)[1:], "hardware=virtual", "steps=2", "tracking=none")
    assert trained.status == 0 and "mine" in trained.out
    monkeypatch.syspath_prepend(str(here / "project"))
    import test_mine  # pyright: ignore[reportMissingImports]

    test_mine.test_it_learns(here)
    test_mine.test_two_workers_train_as_one_does()


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
def test_advise_finds_a_module_of_the_folder_that_it_is_given_in(paceline, here: Path) -> None:
    paceline("init")
    typed = "model=mine", "data=mine", "strategy=data_parallel", "sync=bsp", "hardware.workers=2"
    ended = paceline("advise", *typed, "--config-dir", "conf", "--allow-module", "mine")
    assert ended.status == 0, ended.err
    assert re.search(r"^  time: [\d.]+ ms a step", ended.out, re.MULTILINE) and "of a shipped profile" in ended.out


def test_nothing_is_written_where_one_file_is_there_already(paceline, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/model.py").write_text("mine")
    ended = paceline("init")
    assert ended.status == 2
    assert ended.last == "mine/model.py: already there, and nothing is written over; name another folder"
    assert written(here) == {"mine/model.py"} and (here / "mine/model.py").read_text() == "mine"


def test_a_folder_that_is_a_file_and_a_file_where_a_folder_must_be_are_refused(paceline, here: Path) -> None:
    (here / "file").write_text("")
    assert paceline("init", "file").last == "file: must be a folder, or nothing yet"
    (here / "project").mkdir()
    (here / "project/conf").write_text("")
    ended = paceline("init", "project")
    assert ended.status in (2, 3) and (here / "project/conf").read_text() == ""


def test_the_commands_that_it_prints_are_quoted_for_a_shell(paceline) -> None:
    assert "cd 'my project' && paceline train" in paceline("init", "my project").err


def test_it_may_be_run_in_a_folder_that_has_other_things(paceline, here: Path) -> None:
    (here / "notes.txt").write_text("mine")
    ended = paceline("init")
    assert ended.status == 0 and written(here) == {*FILES, "notes.txt"}
    assert "train it:  paceline train model=mine" in ended.err


def test_a_full_disk_leaves_nothing_in_the_way_of_the_next_attempt(paceline, here: Path, monkeypatch) -> None:
    def fail(path: Path, **_: str) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "read_text", fail)
        ended = paceline("init", "project")
    assert ended.status == 3 and "No space left" in ended.last
    assert written(here / "project") == set()
    assert paceline("init", "project").status == 0
