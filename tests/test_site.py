"""The site that `make docs` builds: complete, without warnings, with links that work, and offline."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from needs import chromium, needs_chromium, needs_mkdocs

from paceline.cli.choices import groups
from paceline.cli.main import app

ROOT = Path(__file__).parents[1]
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
CONNECTS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"}


def test_every_page_is_in_one_part_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert re.findall(r"^  - (\w+):$", nav, re.MULTILINE) == ["Start", "Learn", "Use", "Reference"]
    listed = re.findall(r"[\w/]+\.md$", nav, re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not re.match(r"decisions/\d", page)}
    made = {"index.md", "contributing.md", "reference/python.md"}
    assert sorted(listed) == sorted(pages | made)


@dataclass
class SitePage:
    """Addresses of a page: those it loads, those it links to, and its anchors."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: SitePage) -> None:
        super().__init__()
        self.page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        address = given.get(LOADED.get(tag, ""), "")
        if address and (tag != "link" or CONNECTS & set(given.get("rel", "").split())):
            self.page.loads.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(to)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return to


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, SitePage]:
    found: dict[Path, SitePage] = {}
    for path in site.rglob("*.html"):
        _Reader(found.setdefault(path, SitePage())).feed(path.read_text())
    return found


def outside(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")


@needs_mkdocs
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_page_loads_anything_from_the_network(site: Path, pages: dict[Path, SitePage]) -> None:
    assert len(pages) > 150
    assert {address for page in pages.values() for address in page.loads if outside(address)} == set()
    styles = [text for path in site.rglob("*.css") for text in re.findall(r"url\(([^)]*)\)|@import", path.read_text())]
    assert styles and not [text for text in styles if "//" in text and not text.strip("\"'").startswith("data:")]


@needs_mkdocs
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_each_algorithm_has_a_player(site: Path) -> None:
    page, source = (site / "players.html").read_text(), (ROOT / "docs" / "players.md").read_text()
    sections = re.findall(r"^## ", source, re.MULTILINE)
    assert len(sections) == 10 == page.count('<div class="player"') == page.count('<script type="application/json">')
    assert "@media screen and (prefers" not in page and '[data-md-color-scheme="slate"] { text' in page, "as its switch"


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module docs/hooks/players.py."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    return import_module("players")


@needs_mkdocs
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_players_play_the_events_whose_hashes_are_kept(site: Path, players: Any) -> None:
    """`make docs` writes the hashes anew."""
    assert players.hashes((site / "players.html").read_text()) == players.HASHES.read_text()


def test_a_hash_of_events_changes_with_a_time_and_a_count_and_not_with_the_last_digit_of_a_weight(players: Any) -> None:
    lines = players.HASHES.read_text().splitlines()
    told = {command: digest for digest, _, command in (line.partition("  ") for line in lines)}
    assert [*told] == players.commands((ROOT / "docs" / players.PAGE).read_text())
    command = next(command for command in told if "collective=ring" in command)
    document = players.document(command)
    assert players.event_hash(document) == told[command]
    places = {"name": "weights", "kind": "point", "samples": [[0, 5.0, 0.25, -0.125]]}
    counts = {"name": "clock", "kind": "number", "samples": [[0, 5.0, 1]]}
    masks = {"name": "entries of masks", "kind": "cells", "samples": [[0, 5.0, ["+0.25", "1"], [0.25, 1.0]]]}
    document["held"] = [places, counts, masks]
    usual = players.event_hash(document)
    cells = masks["samples"][0][2]
    for values, place, value, changes in (
        (document["messages"][3], 3, 9e6, True),
        (counts["samples"][0], 2, 2, True),
        (cells, 1, "2", True),
        (cells, 0, "-0.50", False),
        (places["samples"][0], 2, 0.5, False),
    ):
        kept, values[place] = values[place], value
        assert (players.event_hash(document) != usual) == changes, value
        values[place] = kept


@needs_mkdocs
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_links_lead_to_a_page_and_an_anchor(pages: dict[Path, SitePage]) -> None:
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses begin at the root of a server
            continue
        for address in {*page.links, *page.loads}:
            if outside(address):
                continue
            name, _, anchor = address.partition("#")
            target = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                lost[path.name].append(address)
    assert not lost


@needs_mkdocs
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_reference_has_each_choice_and_each_command(site: Path, pages: dict[Path, SitePage]) -> None:
    for group, choices in groups().items():
        page = pages[site / "reference" / "choices" / f"{group.replace('/', '-')}.html"]
        assert {choice.name for choice in choices} <= page.anchors, group
    commands = [
        each.name or each.callback.__name__ for each in app.registered_commands if each.callback and not each.hidden
    ]
    built = {path.stem for path in (site / "reference" / "commands").glob("*.html")}
    assert built == {*commands, "index"} and len(commands) > 20
    played = [address for page in pages.values() for address in page.links if "players.html#" in address]
    assert "../../players.html#stale-synchronous-parallel" in played and len(played) >= 10
    assert "Ho et al. 2013" in (site / "reference" / "choices" / "sync.html").read_text()
    assert "--dry-run" in (site / "reference" / "commands" / "train.html").read_text()
    assert {"engine.api.session.run", "wrap.run.wrap"} <= pages[site / "reference" / "python.html"].anchors


def found_by(site: Path, words: str) -> Iterator[str]:
    """Yields the results of a search in a page that was opened as a file, in a browser that resolves no host."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    address = f"{(site / 'index.html').as_uri()}?q={words}"
    command = [str(chromium()), *options, "--virtual-time-budget=30000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    results = done.stdout.partition("md-search-result__list")[2]
    yield from re.findall(r'href="(?:[^"]*/site\d+/)?([\w/.]+\.html)', results)


@needs_mkdocs
@needs_chromium
@pytest.mark.browser
@pytest.mark.xdist_group("site")
def test_the_search_works_in_a_page_that_is_opened_as_a_file(site: Path) -> None:
    assert "learn/02_parameter_servers.html" in set(found_by(site, "staleness"))
