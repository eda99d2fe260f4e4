"""The versions of Python: one list in the metadata and the page, and nothing that a newer version took away."""

import re
import tomllib
from pathlib import Path

from mutations import ROOMS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# By Python 3.14: modules that are gone, and calls whose result depends on the default start method, which changed
GONE = (
    r"^ *(?:import|from) (?:aifc|asynchat|asyncore|audioop|cgi|cgitb|chunk|crypt|distutils|imghdr|imp|mailcap|msilib"
    r"|nis|nntplib|ossaudiodev|pipes|pkg_resources|smtpd|sndhdr|spwd|sunau|telnetlib|uu|xdrlib)\b",
    r"\bmultiprocessing\.(?:Barrier|Event|Lock|Manager|Pipe|Pool|Process|Queue|SimpleQueue|Value)\(",
    r"\bget_context\(\)",
    r"\bast\.(?:Str|Num|Bytes|NameConstant|Ellipsis)\b|\bpkgutil\.(?:find|get)_loader\b|__dict__\[.__annotations__.\]",
)


def test_the_page_and_the_metadata_name_the_same_versions() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    page = (ROOT / "docs" / "running.md").read_text().partition("## In a container")[0]
    assert sorted(set(re.findall(r"\b3\.1[1-9]\b", page))) == named
    assert PROJECT["requires-python"].startswith(f">={named[0]}")
    first, last = named[0], named[-1]
    assert f"({first} to {last} were tried)" in (ROOT / "README.md").read_text()


def test_no_room_uses_what_a_newer_python_took_away() -> None:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    gone = re.compile("|".join(GONE), re.MULTILINE)
    assert len(files) > 300
    assert [f"{path}: {found[0]}" for path in files for found in gone.finditer(path.read_text())] == []


def test_the_patterns_find_what_they_are_for() -> None:
    gone = re.compile("|".join(GONE), re.MULTILINE)
    for text in ("import imp", "from distutils import util", "multiprocessing.Pool(2)", "get_context()"):
        assert gone.search(text), text
    for text in ("import importlib", "multiprocessing.get_context('fork').Pool(2)", "import crypto"):
        assert not gone.search(text), text
