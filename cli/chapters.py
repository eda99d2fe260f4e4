"""The course's chapters: Markdown files that are read into text and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ..conf.errors import ConfigError
from ..conf.groups import CONF

COURSE = CONF.parent / "learn"  # beside conf, in a clone and as installed
_BLOCK = re.compile(r"^```sh\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"^```text\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!\w+:)([^)]+)\)")
_CHAPTER = re.compile(r"(\d\d)_\w+\.md")
_ANSWER = re.compile(r"^<details[^>]*><summary>(.*?)</summary>\n|^</details>\n?", re.MULTILINE)


@dataclass(frozen=True)
class ChapterPart:
    """A piece of a chapter: Markdown, or one command of the product."""

    kind: Literal["text", "command"]
    content: str

    @property
    def words(self) -> list[str]:
        """Returns a command's words without its comment."""
        return shlex.split(self.content, comments=True)


@dataclass(frozen=True)
class Chapter:
    path: Path

    @property
    def number(self) -> int:
        return int(self.path.stem.partition("_")[0])

    @property
    def name(self) -> str:
        return self.path.stem.partition("_")[2]

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Returns the first heading without its number."""
        return self.text.partition("\n")[0].removeprefix(f"# {self.number}. ")

    def parts(self) -> list[ChapterPart]:
        return list(_parts(self.text))


def chapters() -> list[Chapter]:
    """Returns the chapters in the order of their numbers."""
    return [Chapter(path) for path in sorted(COURSE.glob("[0-9][0-9]_*.md"))]


def chapter_of(asked: str) -> Chapter:
    """Returns the chapter of a number or a name. Raises ConfigError, naming the nearest."""
    known = chapters()
    for each in known:
        if asked in (each.name, str(each.number), each.path.stem):
            return each
    from ..tracking.text import did_you_mean

    hint = did_you_mean(asked, [each.name for each in known])
    hint = hint and f"{hint[:1].upper()}{hint[1:]}{'' if hint.endswith('?') else '.'}"
    hint = hint or f"Choose 1 to {len(known)}, or {known[0].name}."
    raise ConfigError(f"{asked}: there is no such chapter. {hint}")


def _parts(text: str) -> Iterator[ChapterPart]:
    begin = 0
    for block in _BLOCK.finditer(text):
        yield from _piece(text[begin : block.start()])
        for line in block[1].splitlines():
            if line.strip():
                yield ChapterPart("command", line.strip())
        begin = block.end()
    yield from _piece(text[begin:])


def _piece(text: str) -> Iterator[ChapterPart]:
    if text.strip():
        yield ChapterPart("text", text.strip("\n") + "\n")


def text_and_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yields each piece of Markdown with the text block that follows it. Either may be empty."""
    begin = 0
    for block in _OUTPUT.finditer(text):
        yield text[begin : block.start()].strip("\n"), block[1]
        begin = block.end()
    yield text[begin:].strip("\n"), ""


def without_links(text: str) -> str:
    """Returns Markdown whose links are `their text (docs/page.md)`, or the command that shows the chapter."""
    return _LINK.sub(lambda found: f"{found[2]} ({_from_root(found[3])})", text)


def _from_root(target: str) -> str:
    path = target.partition("#")[0]
    if chapter := _CHAPTER.fullmatch(path):
        return f"paceline learn {int(chapter[1])}"
    return path.removeprefix("../../") if path.startswith("../../") else f"docs/{path.removeprefix('../')}"


def for_terminal(text: str) -> str:
    """Returns Markdown without HTML: answers stand behind their summaries."""
    return _ANSWER.sub(lambda found: f"*{found[1]}:*\n" if found[1] else "", without_links(text))
