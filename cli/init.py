"""`paceline init`: a folder to start from, with a model, data, their choices and their test."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ..conf.errors import ConfigError
from .output import note, shortest, show

STARTER = Path(str(files("paceline.cli"))) / "starter"
TEMPLATE = ".template"  # so that nothing takes these files for a part of paceline
TRAIN = "paceline train model=mine data=mine --config-dir conf --allow-module mine"


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="Where to write; it is made where it is not there.", show_default="here"
        ),
    ] = Path(),
) -> None:
    """Write a starter folder: a model, data, a YAML for each, and a test. Nothing is written over.

    \b
    paceline init             here
    paceline init my-project  in a folder of its own
    """
    from ..engine.base.errors import MachineError

    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: must be a folder, or nothing yet")
    wanted = {_target(folder, source): source for source in sorted(STARTER.rglob(f"*{TEMPLATE}"))}
    if there := [str(shortest(path)) for path in wanted if path.exists() or path.is_symlink()]:
        raise ConfigError(f"{', '.join(there)}: already there, and nothing is written over; name another folder")
    made: list[Path] = []
    try:
        for path, source in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(source.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise ConfigError(f"{error.filename}: is in the way; nothing is written over") from None
    except OSError as error:
        for path in made:  # else the next attempt would find them in its way
            path.unlink(missing_ok=True)
        raise MachineError(f"{folder}: cannot be written to ({error.strerror})") from None
    show("\n".join(str(shortest(path)) for path in wanted))
    go = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    note(f"\ntrain it:  {go}{TRAIN}\ntest it:   {go}python -m pytest test_mine.py")


def _target(folder: Path, source: Path) -> Path:
    return folder / source.relative_to(STARTER).with_name(source.name.removesuffix(TEMPLATE))
