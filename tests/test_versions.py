"""The versions that the project takes."""

import re
import tomllib

import pytest
from bounds import PYPROJECT, newest, oldest

PROJECT = tomllib.loads(PYPROJECT.read_text())["project"]
DEPENDENCIES, EXTRAS = PROJECT["dependencies"], PROJECT["optional-dependencies"]


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_dependency_is_bounded_on_both_sides_and_each_bound_can_be_taken_away(requirement: str) -> None:
    name = re.match(r"[\w-]+(\[\w+\])?", requirement)
    lower = re.search(r">=([\d.]+),<[\d.]+(;|$)", requirement)
    assert name and lower
    free, pinned = newest(requirement), oldest(requirement)
    assert free.startswith(f"{name.group()}>={lower[1]}") and pinned.startswith(f"{name.group()}=={lower[1]}")
    for each in (free, pinned):
        assert "<" not in each and each.partition(";")[2] == requirement.partition(";")[2].replace(" ", "")


def test_the_extra_all_is_every_other_one() -> None:
    [everything] = EXTRAS["all"]
    assert everything == f"paceline[{','.join(name for name in EXTRAS if name != 'all')}]"


def test_every_extra_is_bounded_on_both_sides() -> None:
    for name, packages in EXTRAS.items():
        assert name == "all" or all(re.search(r">=[\d.]+,<[\d.]+$", package) for package in packages), name
