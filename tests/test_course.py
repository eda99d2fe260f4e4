"""The course: each chapter has its sections, its commands succeed, and they print what the chapter shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs_jupyter
from test_readme import run_in_process

from paceline.cli.chapters import Chapter, chapters
from paceline.cli.learn_notebook import as_notebook

ROOT = Path(__file__).parents[1]
SECTIONS = ["The equation", "Run it", "Questions", "The paper"]
CHAPTERS = chapters()
NUMBERS = list(range(1, 13))
by_name = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]\d+)?")


def commands(chapter: Chapter) -> list[str]:
    return [part.content for part in chapter.parts() if part.kind == "command"]


def shown(chapter: Chapter) -> list[str]:
    """Returns the lines of output in the section of commands."""
    section = chapter.text.partition("\n## Run it\n")[2].partition("\n## Questions\n")[0]
    blocks = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_the_chapters_are_numbered_and_lie_in_the_folder_of_the_pages() -> None:
    assert [chapter.number for chapter in CHAPTERS] == NUMBERS
    assert len({chapter.name for chapter in CHAPTERS}) == len(CHAPTERS)
    assert {chapter.path.resolve().parent for chapter in CHAPTERS} == {ROOT / "docs" / "learn"}


def test_a_chapter_has_its_sections_commands_output_and_answers() -> None:
    for chapter in CHAPTERS:
        assert chapter.text.startswith(f"# {chapter.number}. "), chapter.name
        assert re.findall(r"^## (.*)$", chapter.text, re.MULTILINE) == SECTIONS, chapter.name
        listed = commands(chapter)
        assert 4 <= len(listed) <= 7 and all(command.startswith("paceline ") for command in listed), chapter.name
        assert len(shown(chapter)) >= 4, chapter.name
        questions = chapter.text.partition("\n## Questions\n")[2]
        assert questions.count('<details markdown="1"><summary>Answer</summary>\n\n') == 3, chapter.name
        assert questions.count("\n\n</details>") == 3, chapter.name


def test_the_page_of_the_course_lists_its_chapters() -> None:
    page = (ROOT / "docs" / "learn" / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) \| \[(.*?)\]\((.*?)\) \| `(.*?)` \|", page, re.MULTILINE)
    assert rows == [(str(each.number), each.title, each.path.name, each.name) for each in CHAPTERS]


def test_no_two_chapters_make_runs_of_one_name() -> None:
    names = [name for each in CHAPTERS for command in commands(each) for name in re.findall(r"--name (\S+)", command)]
    assert len(set(names)) == len(names) > 0 and all(name.startswith("learn-") for name in names)


def numbers_apart(line: str) -> tuple[str, list[float]]:
    """Returns a line with a mark for each number, and the numbers."""
    values = [float(found.replace(",", "")) for found in NUMBER.findall(line)]
    return " ".join(NUMBER.sub("0", line).split()), values


def is_printed(line: str, printed: list[tuple[str, list[float]]]) -> bool:
    """Returns whether a line was printed. Another CPU adds up in another order, which changes last digits."""
    text, values = numbers_apart(line)
    alike = [found for words, found in printed if words == text]
    return any(found == pytest.approx(values, rel=0.02, abs=1e-6) for found in alike)


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(400)
@by_name
def test_the_commands_of_a_chapter_print_what_it_shows(
    chapter: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    printed: list[tuple[str, list[float]]] = []
    for part in chapter.parts():
        if part.kind == "command":
            out = run_in_process(part.words, part.content, monkeypatch, capfd)
            printed += map(numbers_apart, out.splitlines())
    assert [line for line in shown(chapter) if not is_printed(line, printed)] == []


@pytest.mark.docs
@pytest.mark.slow
def test_the_pictures_are_those_that_their_commands_draw(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "hooks" / "pictures.py"), str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=110)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").iterdir()}
    assert drawn.keys() == kept.keys() and len(kept) >= 2
    assert [name for name in kept if len(kept[name]) > 60_000] == []
    assert all(numbers_apart(drawn[name]) == numbers_apart(kept[name]) for name in kept)


@needs_jupyter
@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    opened = nbformat.reads(as_notebook(CHAPTERS[0]), as_version=4)
    NotebookClient(opened, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = "".join(output.get("text", "") for cell in opened.cells for output in cell.get("outputs", []))
    assert "step 3 of 6: share-reduce" in outputs and "0001-ring-16 (modelled)" in outputs


def test_a_line_counts_as_printed_only_with_its_words_and_numbers() -> None:
    printed = [numbers_apart("a ring  1,234.5 KiB  95.00%")]
    assert is_printed("a ring 1,234.6 KiB 95.01%", printed)
    assert not is_printed("a ring 1,334.5 KiB 95.00%", printed)
    assert not is_printed("a tree 1,234.5 KiB 95.00%", printed)
