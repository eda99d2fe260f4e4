"""The Markdown pages have short lines, and links that lead to a file and a heading."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from paceline import engine

ROOT = Path(__file__).parents[1]
WIDTH = 100  # characters
EVERY = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Decisions and the log are records: they stay as they were written.
PAGES = [page for page in EVERY if page.parent.name != "decisions" and page.name != "log.md"]


@cache
def prose(page: Path) -> tuple[tuple[int, str], ...]:
    """Returns the lines outside of code blocks, with their numbers."""
    return tuple(_outside_of_code(page.read_text().splitlines()))


def _outside_of_code(lines: list[str]) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    titles = [re.sub(r"^#+ ", "", line) for _, line in prose(page) if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_lines_outside_of_tables_and_code_have_at_most_100_characters() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{number}: {len(line)} characters"
        for page in PAGES
        for number, line in prose(page)
        if len(line) > WIDTH and not line.startswith("|")
    ]
    assert len(PAGES) > 30 and not long


def test_links_lead_to_a_file_and_a_heading() -> None:
    lost: list[str] = []
    for page in EVERY:
        text = "\n".join(line for _, line in prose(page))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            path = (page.parent / name).resolve() if name else page
            if not path.exists() or (anchor and anchor not in headings(path)):
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert not lost


def test_the_page_of_compression_has_each_compressor() -> None:
    page = (ROOT / "docs" / "compression.md").read_text()
    names = sorted(path.stem for path in (ROOT / "conf" / "compress").glob("*.yaml"))
    missing = [name for name in names if not re.search(rf"`(compress=)?{name}[` ]", page)]
    assert names and not missing, f"docs/compression.md: add {', '.join(missing)} of conf/compress/"


@pytest.mark.slow
def test_the_page_of_precision_has_the_predicted_steps() -> None:
    page = " ".join((ROOT / "docs" / "precision.md").read_text().split())
    ms: list[int] = []
    for given in ("bf16", "fp32"):
        prepared = engine.prepare(f"precision={given} hardware=a100_8 model=gpt_1b data=text")
        step = prepared.prediction(prepared.plan())
        assert step is not None
        ms.append(round(1e3 * step.seconds))
    assert f"predicts {ms[0]} ms in place of {ms[1]} ms for the third line" in page
