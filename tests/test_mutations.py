"""The lists of lines that `make mutations` and `make safeguards` break are of the code that there is."""

from pathlib import Path

import pytest
from faults.safeguards import SAFEGUARDS
from mutations import MUTATIONS, ROOMS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("broken", [*MUTATIONS, *SAFEGUARDS], ids=lambda broken: broken.file)
def test_a_line_that_is_to_be_broken_is_there_once(broken) -> None:
    assert (ROOT / broken.file).read_text().count(broken.old) == 1, f"{broken.file} does not have once:\n{broken.old}"


@pytest.mark.parametrize("file", sorted({mutation.tests.split()[0] for mutation in MUTATIONS}))
def test_the_tests_that_guard_a_line_are_there(file: str) -> None:
    assert (ROOT / file).exists()


def test_a_copy_of_the_tree_has_every_room() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"} == set(ROOMS)
