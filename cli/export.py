"""`paceline export`: the model of a run, as a folder to take along."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..conf.errors import ConfigError
from .completion import complete_source
from .find import find
from .output import note, note_all, note_damage, shortest, show

if TYPE_CHECKING:
    from ..tracking.run_data import RunData


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run that completed, SWEEP/RUN, or a directory.",
            autocompletion=complete_source,
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write: new, or empty.")],
) -> None:
    """Write the model of a run as a folder for a model hub.

    It has the weights (model.safetensors), the configuration (config.json) and a model card (README.md) with the run's
    figures, the line that repeats it, and versions. The card names no licence: add yours to its first lines.

    \b
    paceline export first-asp first-asp-model
    hf upload YOU/first-asp first-asp-model     by Hugging Face's own command, with your account
    """
    from ..tracking.card import portable, write_card
    from ..tracking.sources import check

    found = find(run)
    note_damage([found])
    check(found)
    config, files = portable(found.config)
    if (privacy := config.get("privacy", {}).get("name", "none")) != "none":
        seed = config.pop("seed", None)
        told = f"privacy={privacy}: the folder is without the run's seed, by which the noise could be taken off"
        note(f"{told}. It is 0, the default, and easy to guess: train with another seed" if seed == 0 else told)
    found = replace(found, config=config)
    write_card(found, folder, _command(found), files)
    show("\n".join(str(shortest(path)) for path in sorted(folder.iterdir())))


def _command(run: "RunData") -> str | None:
    """Returns the line that repeats the run; None for a script's, or one that this version cannot compose."""
    from ..engine.config.repeat import command_of
    from ..tracking.run_directory import RunDirectory

    if run.path is not None and RunDirectory(run.path).is_of_script():
        return None
    try:
        line, notes = command_of(run.config)
    except (ConfigError, KeyError, TypeError, AttributeError, ValueError) as error:
        note(f"the card has no line that repeats the run: its configuration is not one of this version's ({error})")
        return None
    note_all(notes)
    return line
