"""The versions that the project takes."""

import re
import tomllib

import pytest
from unbounded import PYPROJECT, unbounded

DEPENDENCIES = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_dependency_is_bounded_on_both_sides_and_unbounded_above_for_the_newest(requirement: str) -> None:
    name = re.match(r"[\w-]+(\[\w+\])?", requirement)
    assert name and re.search(r">=[\d.]+,<[\d.]+(;|$)", requirement)
    free = unbounded(requirement)
    assert free.startswith(f"{name.group()}>=") and "<" not in free
    assert free.partition(";")[2] == requirement.partition(";")[2].replace(" ", "")
