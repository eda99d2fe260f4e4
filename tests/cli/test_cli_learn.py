"""`paceline learn`: chapters are listed, printed, walked through and written as notebooks."""

import builtins
import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.cli import chapters as of_course
from paceline.cli import learn as command

SMALL = """# 1. A small chapter
First text, with a [link](../cost.md#days).

```sh
paceline list terms   # a comment
paceline train --name learn-taken
```

```text
a line of output that is wider than the terminal of these tests, which is not to be wrapped
```

<details markdown="1"><summary>Answer</summary>

Last text.

</details>
"""


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A course of one chapter."""
    course = tmp_path_factory.mktemp("course")
    (course / "01_small.md").write_text(SMALL)
    monkeypatch.setattr(of_course, "COURSE", course)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that a walk runs, none of which runs."""
    commands: list[str] = []
    monkeypatch.setattr(command, "_run", lambda part, _, *options: commands.append(" ".join([part.content, *options])))
    return commands


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    given = iter(answers)
    monkeypatch.setattr(command, "terminal_width", lambda: 70)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(builtins, "input", lambda _: next(given))


def test_without_a_chapter_it_lists_all(paceline) -> None:
    ended = paceline("learn")
    listed = [line.split()[:2] for line in ended.out.splitlines()]
    assert ended.status == 0 and listed == [[str(each.number), each.name] for each in of_course.chapters()]
    assert ["6", "pipelines"] in listed


def test_elsewhere_than_in_a_terminal_it_prints_the_chapter_and_runs_nothing(paceline, small, ran, here) -> None:
    assert paceline("learn", "1").out == SMALL
    assert paceline("learn", "small").out == SMALL
    assert not ran and not list(here.iterdir())


def test_yes_runs_all_commands_in_order(paceline, small, ran) -> None:
    ended = paceline("learn", "1", "--yes")
    assert ran == ["paceline list terms   # a comment", "paceline train --name learn-taken"]
    assert ended.status == 0 and ended.out.index("First") < ended.out.index("$ paceline train") < ended.out.index(
        "Last"
    )


def test_a_run_that_is_there_is_not_repeated(paceline, small, ran, here: Path) -> None:
    (here / "runs/learn-taken").mkdir(parents=True)
    ended = paceline("learn", "1", "--yes")
    assert ran == ["paceline list terms   # a comment"]
    assert "runs/learn-taken is there already" in ended.last and "paceline rm learn-taken" in ended.last


def test_a_sweep_that_is_there_goes_on_with_what_is_unfinished(paceline, ran, here: Path, monkeypatch) -> None:
    (here / "course").mkdir()
    (here / "course/01_small.md").write_text("# 1. Small\n\n```sh\npaceline sweep sync=bsp,asp --name learn-two\n```\n")
    (here / "runs/learn-two").mkdir(parents=True)
    monkeypatch.setattr(of_course, "COURSE", here / "course")
    ended = paceline("learn", "1", "--yes")
    assert ran == ["paceline sweep sync=bsp,asp --name learn-two --resume"]
    assert "runs/learn-two is there already: what is unfinished of it runs again" in ended.last


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("02_parameter_servers.md", "paceline learn 2"),
        ("12_large_batches_and_cost.md#questions", "paceline learn 12"),
        ("../cost.md#days", "docs/cost.md"),
        ("../../README.md", "README.md"),
    ],
)
def test_a_link_names_the_page_or_the_command_of_the_chapter(target: str, said: str) -> None:
    assert of_course.without_links(f"[Words]({target})") == f"Words ({said})"


@pytest.mark.parametrize(("answers", "count"), [(("", ""), 2), (("s", ""), 1), (("q",), 0)])
def test_in_a_terminal_each_command_waits_for_an_answer(
    answers: tuple[str, ...], count: int, paceline, small, ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_terminal(monkeypatch, *answers)
    ended = paceline("learn", "1")
    assert ended.status == 0 and len(ran) == count
    assert "link (docs/cost.md)" in ended.out and "<details" not in ended.out
    if "q" not in answers:
        assert SMALL.partition("```text\n")[2].partition("\n")[0] in ended.out.splitlines()
    last = ended.out.partition("Answer:")[2]
    assert ("Last text." in last) == (answers[-1] != "q")


def test_ctrl_c_is_left_to_the_command_which_ends_by_itself(paceline, small, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def interrupted(*given: object, **more: object) -> SimpleNamespace:
        signal.raise_signal(signal.SIGINT)
        ended.append("by itself")  # subprocess.run kills a command that is still there at a KeyboardInterrupt
        return SimpleNamespace(returncode=130)

    monkeypatch.setattr(command.subprocess, "run", interrupted)
    done = paceline("learn", "1", "--yes")
    assert done.status == 130 and ended == ["by itself"]
    assert done.last == "to go on with the chapter: paceline learn 1" and "ended with exit status" not in done.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_fails_ends_the_walk_with_its_status(paceline, small, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def fail(words: list[str], check: bool) -> SimpleNamespace:
        calls.append(words)
        return SimpleNamespace(returncode=5)

    monkeypatch.setattr(command.subprocess, "run", fail)
    ended = paceline("learn", "1", "--yes")
    assert calls == [[sys.executable, "-P", "-m", "paceline.cli.main", "list", "terms"]]
    assert ended.status == 5 and ended.last.endswith("ended with exit status 5")
    assert "Last text." not in ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pipelnes"], "pipelnes: there is no such chapter. Did you mean pipelines?"),
        (["13"], "13: there is no such chapter. Choose 1 to"),
        (["--notebook"], "--notebook: needs a chapter."),
        (["1", "--out", "a.ipynb"], "--out a.ipynb: names the file of a notebook. Add --notebook."),
        (["1", "--notebook", "--out", "none/a.ipynb"], "there is no directory none"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], said: str, paceline, here: Path) -> None:
    ended = paceline("learn", *arguments)
    assert ended.status == 2 and said in ended.last and not list(here.iterdir())


def test_a_notebook_has_a_cell_for_each_text_and_command(paceline, small, here: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    ended = paceline("learn", "--notebook", "1")
    assert ended.status == 0 and ended.out == "small.ipynb\n"
    written = json.loads((here / "small.ipynb").read_text())
    nbformat.validate(written)
    assert [cell["cell_type"] for cell in written["cells"]] == ["markdown", "code", "code", "markdown"]
    assert written["cells"][1]["source"] == ["!paceline list terms   # a comment"]
    assert "link (docs/cost.md)" in "".join(written["cells"][0]["source"])
    again = paceline("learn", "--notebook", "1")
    assert again.status == 2 and "small.ipynb: is there already. Choose another file." in again.last


def test_a_notebook_that_cannot_be_written_ends_with_status_3(paceline) -> None:
    ended = paceline("learn", "--notebook", "1", "--out", "/proc/chapter.ipynb")
    assert ended.status == 3 and "cannot write /proc/chapter.ipynb: " in ended.last


def test_a_full_disk_leaves_no_half_notebook(paceline, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        ended = paceline("learn", "--notebook", "1", "--out", "mine.ipynb")
    assert ended.status == 3 and "cannot write mine.ipynb: No space left" in ended.last
    assert not [*here.glob("*mine.ipynb*")]
    assert paceline("learn", "--notebook", "1", "--out", "mine.ipynb").status == 0
