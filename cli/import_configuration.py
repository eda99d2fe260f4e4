"""`paceline import`: the configuration of another tool as a line of paceline."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Format
from .output import note, note_all, show, show_json

if TYPE_CHECKING:
    from ..advise.imported import ImportedConfiguration


def import_configuration(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="deepspeed, accelerate or torchtitan.")],
    file: Annotated[Path, typer.Argument(help="JSON of DeepSpeed, YAML of Accelerate, TOML of torchtitan.")],
    format: Format = "table",
) -> None:
    """Turn a configuration of another tool into a line of paceline.

    The line is on standard output. Settings that have no override are named on standard error.

    \b
    paceline import deepspeed ds_config.json
    paceline import accelerate default_config.yaml
    paceline import torchtitan llama3_8b.toml --format json
    """
    from ..advise.imported import read

    found = read(tool, file)
    if format == "json":
        show_json({"command": _line(found), "left_out": found.left_out, "notes": found.notes})
        return
    show(_line(found))
    for setting in found.left_out:
        note(f"left out: {setting}")
    note_all(found.notes)


def _line(found: "ImportedConfiguration") -> str:
    return shlex.join(["paceline", "train", *found.overrides])
