"""The lists of lines that `make mutations` and `make safeguards` break are of the code that there is."""

from pathlib import Path

from faults.safeguards import SAFEGUARDS
from mutations import MUTATIONS, ROOMS

ROOT = Path(__file__).parents[1]


def test_a_line_that_is_to_be_broken_is_there_once() -> None:
    every = [*MUTATIONS, *SAFEGUARDS]
    texts = {file: (ROOT / file).read_text() for file in {broken.file for broken in every}}
    wrong = [broken for broken in every if texts[broken.file].count(broken.old) != 1]
    assert not wrong, "\n".join(f"{broken.file} does not have once:\n{broken.old}" for broken in wrong)


def test_the_tests_that_guard_a_line_are_there() -> None:
    assert not [mutation.tests for mutation in MUTATIONS if not (ROOT / mutation.tests.split()[0]).exists()]


def test_a_copy_of_the_tree_has_every_room() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"} == set(ROOMS)
