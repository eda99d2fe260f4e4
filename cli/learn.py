"""`paceline learn`: a course in chapters, read and run in the terminal or as a notebook."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..conf.errors import ConfigError
from .chapters import chapter_of, chapters, for_terminal, text_and_blocks
from .completion import complete_chapter
from .importing import INTERRUPTED
from .output import aligned, note, shortest, show, terminal_width

if TYPE_CHECKING:
    from .chapters import Chapter, ChapterPart

WIDEST = 100  # characters of a line of text


def learn(
    chapter: Annotated[
        str | None,
        typer.Argument(
            metavar="CHAPTER",
            help="Its number or name. Default: the list of chapters.",
            show_default=False,
            autocompletion=complete_chapter,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run every command without asking.")] = False,
    notebook: Annotated[bool, typer.Option("--notebook", help="Write the chapter as a Jupyter notebook.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --notebook: its file. Default: NAME.ipynb here.", show_default=False),
    ] = None,
) -> None:
    """Learn distributed training by running it: twelve chapters of text, commands, figures and questions.

    In a terminal each command waits for Enter. Elsewhere the chapter is printed and nothing runs, unless --yes is
    given. Commands run in the current directory, and their runs stay in runs/.

    \b
    paceline learn                       the chapters
    paceline learn 1                     walk through the first one
    paceline learn pipelines --yes       run its commands without asking
    paceline learn --notebook pipelines  write pipelines.ipynb
    """
    if out is not None and not notebook:
        raise ConfigError(f"--out {out}: names the file of a notebook. Add --notebook.")
    if chapter is None:
        if notebook:
            raise ConfigError("--notebook: needs a chapter. Choose one of paceline learn.")
        rows = [[str(each.number), each.name, each.title] for each in chapters()]
        show("\n".join(aligned(rows, numbers_from=3)))
        return
    chosen = chapter_of(chapter)
    if notebook:
        _write(chosen, out or Path(f"{chosen.name}.ipynb"))
    else:
        _walk(chosen, yes)


def _walk(chapter: "Chapter", yes: bool) -> None:
    """Shows the texts of a chapter and runs its commands. Raises typer.Exit with the status of one that fails."""
    asks = terminal_width() is not None and sys.stdin.isatty() and not yes
    if not (asks or yes):
        show(chapter.text)
        return
    for part in chapter.parts():
        if part.kind == "text":
            _show_text(part.content)
            continue
        show(f"$ {part.content}")
        taken, resumes = _taken(part), part.words[1] == "sweep"
        if taken:
            ran = "what is unfinished of it runs again" if resumes else "the command is not run again"
            note(f"{taken} is there already: {ran} (paceline rm {taken.name} removes it)")
        if taken and not resumes:
            continue
        asked = _answer() if asks else ""
        if asked == "":
            _run(part, chapter, *(["--resume"] if taken else []))
        elif asked == "q":
            return


def _show_text(text: str) -> None:
    """Prints Markdown: laid out for a terminal, as it is elsewhere. Pictures and tables of output are not wrapped."""
    if (width := terminal_width()) is None:
        show(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(width, WIDEST), file=sys.stdout)
    shown: list[str] = []
    for piece, block in text_and_blocks(for_terminal(text)):
        with console.capture() as laid_out:
            console.print(Markdown(piece))
        shown += [laid_out.get().rstrip(), block.rstrip()]
    show("\n" + "\n\n".join(filter(None, shown)) + "\n")


def _answer() -> str:
    """Returns "" to run a command, "s" to skip it, "q" to leave."""
    try:
        asked = input("Enter runs it, s skips it, q leaves: ").strip().lower()[:1]
    except EOFError:
        return "q"
    return asked if asked in ("s", "q") else ""


def _taken(command: "ChapterPart") -> Path | None:
    """Returns the directory of the run or sweep that a command would make, where there is one already."""
    from ..engine import ROOT

    words = command.words
    if words[1] not in ("train", "sweep") or "--name" not in words:
        return None
    directory = ROOT / words[words.index("--name") + 1]
    return directory if directory.exists() else None


def _run(command: "ChapterPart", chapter: "Chapter", *options: str) -> None:
    """Raises typer.Exit, and InterruptedRunError after Ctrl-C."""
    words = [sys.executable, "-P", "-m", "paceline.cli.main", *command.words[1:], *options]
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the command gets Ctrl-C, too, and ends its workers
    try:
        done = subprocess.run(words, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode in (INTERRUPTED, -signal.SIGINT):  # the command has said so
        from ..engine.base.errors import InterruptedRunError

        raise InterruptedRunError(f"to go on with the chapter: paceline learn {chapter.number}", INTERRUPTED)
    if done.returncode:
        note(f"{command.content}: ended with exit status {done.returncode}")
        raise typer.Exit(done.returncode if done.returncode > 0 else 128 - done.returncode)


def _write(chapter: "Chapter", file: Path) -> None:
    """Raises ConfigError and StorageError."""
    from ..tracking.run_directory import write_atomically
    from .compare import check_file
    from .learn_notebook import as_notebook

    check_file("--out", file)
    if file.exists() or file.is_symlink():
        raise ConfigError(f"--out {file}: is there already. Choose another file.")
    write_atomically(file, as_notebook(chapter))
    show(str(shortest(file)))
