"""A hook of mkdocs: adds the README, the reference and linked sources as pages, and leads links to them."""

import posixpath
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / ".paths")]

import players  # noqa: E402
import reference  # noqa: E402

MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}  # pages of the root
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}


pages = cache(reference.pages)  # a few seconds


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that docs/ does not have."""
    made = {**pages(), **{to: (ROOT / name).read_text() for name, to in MOVED.items()}}
    texts = made | {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path in sorted({path for at, text in texts.items() for path in _sources(at, text)}):
        made[_of_source(path)] = _as_page(path)
    made["assets/iframe-worker.js"] = (HERE / "iframe-worker.js").read_text()
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_config(config: Any) -> Any:
    """Lists the pages of the reference in the navigation, where it has a folder."""
    config.nav = _listed(config.nav, list(pages()))
    return config


def _listed(nav: Any, made: list[str]) -> Any:
    """Returns the navigation with the pages of a folder in place of its name."""
    if isinstance(nav, list):
        return [_listed(each, made) for each in nav]
    if isinstance(nav, dict):
        return {title: _listed(each, made) for title, each in nav.items()}
    return [path for path in made if path.startswith(nav)] if nav.endswith("/") else nav


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leads links that leave docs/ to their pages in the site."""
    at = page.file.src_uri
    if at == players.PAGE:
        page.meta["commands"], markdown = markdown, players.with_places(markdown)
    return _outside_of_code(markdown, lambda text: LINK.sub(lambda link: _led(at, link), text))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Adds the players to their page."""
    return players.with_players(html, page.meta["commands"]) if page.file.src_uri == players.PAGE else html


def _led(at: str, link: re.Match[str]) -> str:
    path = _target(at, link[2])
    if path is None:
        return link[0]
    to = MOVED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else _of_source(path))
    return f"{link[1]}{posixpath.relpath(to, posixpath.dirname(at) or '.')}{link[3]}"


def _target(at: str, link: str) -> str | None:
    """Returns the file that a link leads to, from the root; None for one of the site itself or of the net."""
    if re.match(r"\w+:", link) or at.startswith(("reference/", "source/")):
        return None
    folder = "" if at in MOVED.values() else posixpath.join("docs", posixpath.dirname(at))
    path = posixpath.normpath(posixpath.join(folder, link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path


def _sources(at: str, text: str) -> Iterator[str]:
    """Yields the files outside of docs/ that a page links to."""
    found: list[str] = []
    _outside_of_code(text, lambda piece: found.extend(link[2] for link in LINK.finditer(piece)) or piece)
    for link in found:
        path = _target(at, link)
        if path is not None and not path.startswith("docs/") and path not in MOVED:
            yield path


def _of_source(path: str) -> str:
    return f"source/{path}.md"


def _as_page(path: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text().rstrip()}\n````\n"


def _outside_of_code(text: str, change: Any) -> str:
    pieces = re.split(r"(^ *```.*?^ *```\s*?$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if place % 2 else change(piece) for place, piece in enumerate(pieces))
