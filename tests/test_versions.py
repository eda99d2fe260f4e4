"""The versions that the project takes."""

import re
import tomllib

import pytest
from bounds import PYPROJECT, newest, oldest

DEPENDENCIES = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_dependency_is_bounded_on_both_sides_and_each_bound_can_be_taken_away(requirement: str) -> None:
    name = re.match(r"[\w-]+(\[\w+\])?", requirement)
    lower = re.search(r">=([\d.]+),<[\d.]+(;|$)", requirement)
    assert name and lower
    free, pinned = newest(requirement), oldest(requirement)
    assert free.startswith(f"{name.group()}>={lower[1]}") and pinned.startswith(f"{name.group()}=={lower[1]}")
    for each in (free, pinned):
        assert "<" not in each and each.partition(";")[2] == requirement.partition(";")[2].replace(" ", "")
