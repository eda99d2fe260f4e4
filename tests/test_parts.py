"""The four parts of the tests are all run, whichever of them fails, and together they are all tests."""

import ast
import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
from budget import ALL, CASE, CASES, COSTS, chosen, costs_of, name_of, summarise
from needs import needs_make

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MARKS = ("slow", "fault", "browser")


def make(target: str, told: Path, fails: str) -> int:
    """The exit status of `make target`, with a script for pytest, which notes its -m and fails where `fails` is it."""
    script = told.with_name("pytest.sh")
    script.write_text(f'echo "$2" >>{told}\ntest "$2" != "{fails}"\n')
    ready = told.with_name("ready")
    ready.touch()  # else make might set up the environment anew
    command = ["make", target, f"READY={ready}", f"PYTEST=sh {script}"]
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
        marked: dict[str, object] = dict(zip(MARKS, has, strict=True))
        assert sum(eval(part, None, marked) for part in parts) == 1, marked


@needs_make
def test_what_pytest_is_given_is_no_name_of_a_target(tmp_path: Path) -> None:
    given = ["make", "--dry-run", "test", f"READY={tmp_path}", "ARGS=tests/comm/test_x.py::test_y"]
    said = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "tests/comm/test_x.py::test_y" in said


@pytest.mark.parametrize("part", ["test-fault", "test-browser", "test-slow SAMPLE="])
def test_ci_runs_it(part: str) -> None:
    run = " ".join((ROOT / ".ci" / "run").read_text().split())
    assert part in run and "--keep-going check test ||" in run


@pytest.mark.parametrize(
    ("cases", "cost", "kept"),
    [
        (4, 0.25, {0, 1, 2, 3}),
        (10, 0.5, {0, 5}),
        (7, 0.34, {0, 3}),
        (5, 1.1, set()),
        (1, 9.0, set()),
        (1, 1.0, {0}),
        (3, 0.0, {0, 1, 2}),
    ],
)
def test_of_many_cases_as_many_are_fast_as_are_paid_for(cases: int, cost: float, kept: set[int]) -> None:
    assert chosen(cases, cost, budget=1.0) == kept


def test_one_case_is_fast_below_a_limit_whatever_all_of_them_may_take() -> None:
    assert chosen(3, CASE, budget=CASES) == {0}
    assert chosen(3, CASE + 0.01, budget=CASES) == set()


def test_a_measured_case_counts_for_its_test() -> None:
    node = "tests/comm/test_x.py::TestX::test_y[a-1]@test_x"
    assert name_of(node) == "comm/test_x.py::TestX::test_y"
    lines = [f"{node}\t1.00\t9.00", "tests/comm/test_x.py::TestX::test_y[b]\t0.50\t1.00", "half a li"]
    assert summarise(lines).splitlines()[1:] == ["comm/test_x.py::TestX::test_y\t2\t0.75"]


def budgets_of_their_own() -> dict[str, float]:
    """By test: what `@pytest.mark.budget`, or its file's pytestmark, says."""
    found: dict[str, float] = {}
    for file in TESTS.rglob("test_*.py"):
        source = file.read_text()
        if "mark.budget(" not in source:
            continue
        tree = ast.parse(source)
        of_file = [
            node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
        ]
        for test in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            said = [
                re.findall(r"mark\.budget\(([\d.]+)\)", ast.unparse(mark)) for mark in [*of_file, *test.decorator_list]
            ]
            for seconds in (each for those in said for each in those):
                found[f"{file.relative_to(TESTS)}::{test.name}"] = float(seconds)  # its own mark comes last
    return found


def test_the_fast_part_keeps_to_its_budget() -> None:
    """Measured when costs.tsv was made; renew it with `make costs`."""
    lines = [line.split("\t") for line in COSTS.read_text().splitlines()[1:]]
    costs = costs_of(COSTS)
    own = budgets_of_their_own()
    paid = {test: len(chosen(int(cases), costs[test], own.get(test, CASES))) * costs[test] for test, cases, _ in lines}
    assert sum(paid.values()) < ALL
    dear = {test: cost for test, cost in paid.items() if cost > 10 and "test_conformance" not in test}
    assert not dear, "mark these slow, or make them cheaper"
