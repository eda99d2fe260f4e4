"""The folders in which modules that the user allows are looked for."""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.engine.base.own_modules import find_modules


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules of which the library `taken` is installed, too."""
    for module in ("installed/taken", "here/taken", "here/queue", "here/wanted_by_a_library", "here/of_mine/wide"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{module}.py").touch()
    monkeypatch.setattr(sys, "path", [*(path for path in sys.path if path), str(tmp_path / "installed")])
    monkeypatch.chdir(tmp_path / "here")
    importlib.invalidate_caches()
    return tmp_path / "here"


@pytest.mark.parametrize("allowed", [[], ["taken"], ["queue"], ["there_is_no_such_module"]])
def test_no_module_of_the_current_folder_is_found_unless_one_that_is_allowed_lies_only_there(
    allowed: list[str], here: Path
) -> None:
    before = list(sys.path)
    find_modules(allowed)
    assert sys.path == before and find_spec("wanted_by_a_library") is None


def test_a_module_of_the_users_is_found_with_those_beside_it_and_shadows_none(here: Path) -> None:
    before = list(sys.path)
    for _ in range(2):
        assert find_modules(["of_mine.wide"]) == {}
        assert sys.path == [*before, str(here)]
    assert (mine := find_spec("of_mine.wide")) and mine.origin == str(here / "of_mine" / "wide.py")
    assert find_spec("wanted_by_a_library") is not None
    assert (spec := find_spec("taken")) and spec.origin == str(here.parent / "installed" / "taken.py")


def test_the_module_that_is_taken_in_place_of_the_users_is_told(here: Path) -> None:
    found = find_modules(["taken", "queue", "of_mine"])
    assert list(found) == ["taken", "queue"] and found["taken"] == str(here.parent / "installed" / "taken.py")


def test_a_folder_that_python_itself_puts_first_stays_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", before := [str(here), *sys.path])
    assert find_modules(["taken"]) == {} and sys.path == before


def test_a_folder_that_python_has_by_another_name_is_the_same(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYTHONPATH of $PWD keeps the names of links."""
    (link := here.parent / "link").symlink_to(here)
    monkeypatch.setattr(sys, "path", before := [str(link), *sys.path])
    assert find_modules(["taken"]) == {} and sys.path == before
