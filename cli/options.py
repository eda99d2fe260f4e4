"""Arguments that several commands take."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from .completion import complete_override
from .output import note, note_all, show


def _help(ctx: typer.Context, asked: bool) -> None:
    if asked:
        show(ctx.get_help())
        raise typer.Exit


# Of a group of commands. Typer's own loads pydantic even when it is not given: half of the time of a start
Help = Annotated[bool, typer.Option("-h", "--help", callback=_help, is_eager=True, help="Show this message and exit.")]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES",
        help="group=choice or key=value, such as sync=asp optimizer.lr=0.1 hardware.workers=4.",
        show_default=False,
        autocompletion=complete_override,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(
        "--config-dir",
        metavar="DIR",
        help="A directory of your own choices: DIR/model/mine.yaml is model=mine.",
        show_default=False,
    ),
]


def _allowed(given: list[str] | None) -> list[str] | None:
    if given:
        from ..engine.base.own_modules import find_modules

        for name, file in find_modules(given).items():
            note(f"--allow-module {name}: is {file}, not what this folder has under the name")
    return given


AllowModule = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        callback=_allowed,
        metavar="PACKAGE",
        help="A package of yours that _target_ may name a class in. May be repeated.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Begin with what a file says: a run's config.yaml, or one of your own; overrides win.",
        show_default=False,
    ),
]
Format = Annotated[
    Literal["table", "json"],
    typer.Option(help="json: one document on standard output, raw values with units in the names, nothing else."),
]


def with_config(
    config: Path | None, overrides: list[str], config_dir: Path | None
) -> tuple[list[str], AbstractContextManager[None]]:
    """Returns the overrides to compose, and a context in which an error about the file's contents names the file.

    Raises `ConfigError`, also where the file alone says who receives the results.
    """
    from ..engine.config.config_file import with_file

    if config is None:
        return overrides, nullcontext()
    merged = with_file(config, overrides, config_dir)
    merged.check_receivers(config_dir)
    note_all([told] if (told := merged.tracked()) else [])
    return merged.overrides, merged.blamed()
