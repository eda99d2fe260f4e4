"""What a machine lacks is skipped by name, before any fixture, and the last lines count it and say what to install."""

import dataclasses

import needs
import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from needs import needs_bash, needs_compiler, require

@pytest.fixture
def server():
    require("postgres")

@pytest.fixture
def broken():
    raise RuntimeError("was begun without what it needs")

@needs_compiler
@pytest.mark.parametrize("number", [1, 2, 3])
def test_compiles(number, broken):
    raise AssertionError

def test_asks(server):
    raise AssertionError

@needs_bash
def test_runs():
    pass

@pytest.mark.skip(reason="for a reason of its own")
def test_is_not_ours():
    pass
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which only bash is there."""
    for name, need in needs.NEEDS.items():
        there = dataclasses.replace(need, is_there=lambda there=name == "bash": there)
        monkeypatch.setitem(needs.NEEDS, name, there)


@pytest.mark.usefixtures("bare")
def test_what_is_missing_is_skipped_by_name_and_counted_in_the_last_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers = needs(name): from needs.py\n")
    result = pytester.runpytest_inprocess("-p", "needs", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=5)
    assert result.outlines[-2:] == [
        "3 skipped: needs a C++ compiler (apt-get install g++)",
        "1 skipped: needs PostgreSQL's server (apt-get install postgresql)",
    ]


def test_each_need_has_a_mark_of_its_name() -> None:
    marks = {name: value for name, value in vars(needs).items() if name.startswith("needs_")}
    assert {name.removeprefix("needs_"): mark.args for name, mark in marks.items()} == {
        name: (name,) for name in needs.NEEDS
    }
