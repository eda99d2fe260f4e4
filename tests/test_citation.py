"""Holds the citation, the changelog and the security policy to pyproject."""

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
# The schema of CFF 1.2.0 demands the former, and allows the latter at the top
DEMANDED = {"authors", "cff-version", "message", "title"}
ALLOWED = DEMANDED | {
    "abstract",
    "commit",
    "contact",
    "date-released",
    "doi",
    "identifiers",
    "keywords",
    "license",
    "license-url",
    "preferred-citation",
    "references",
    "repository",
    "repository-artifact",
    "repository-code",
    "type",
    "url",
    "version",
}


def releases() -> list[tuple[str, str]]:
    """Returns the versions of the changelog with their dates, as they stand."""
    return re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_citation_has_the_keys_and_types_of_cff_1_2_0() -> None:
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert set(CITATION) >= DEMANDED and set(CITATION) <= ALLOWED
    assert all(set(author) == {"name"} for author in CITATION["authors"])
    assert type(CITATION["date-released"]) is datetime.date
    texts = (*CITATION["keywords"], CITATION["message"], CITATION["title"], CITATION["abstract"], CITATION["version"])
    assert all(isinstance(text, str) and text for text in texts)


def test_the_citation_says_what_pyproject_says() -> None:
    for key in ("version", "license", "keywords", "authors"):
        assert CITATION[key] == PROJECT[key], key
    assert CITATION["title"].lower() == f"{PROJECT['name']}: {PROJECT['description']}".lower()


def test_the_changelog_begins_with_the_unreleased_and_this_version() -> None:
    version, date = releases()[0]
    assert (version, date) == (PROJECT["version"], str(CITATION["date-released"]))
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads == ["Unreleased", *(version for version, _ in releases())]
    assert releases() == sorted(releases(), key=lambda each: each[1], reverse=True)


def test_the_policy_supports_this_version_and_the_pages_name_its_wheel() -> None:
    series = PROJECT["version"].rpartition(".")[0]
    assert f"| {series} | yes |" in (ROOT / "SECURITY.md").read_text()
    named = {
        version
        for page in (ROOT / "docs" / "ci.md", ROOT / "docs" / "running.md")
        for version in re.findall(r"paceline-([\d.]+)-py3", page.read_text())
    }
    assert named == {PROJECT["version"]}
