"""`paceline list`: what can be chosen."""

from typing import Annotated, Any

import typer

from .choices import Choice, defaults, group_of, groups
from .completion import complete_group
from .options import AllowModule, ConfigDir, Format
from .output import aligned, show, show_json


def list_choices(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="Only this group; columns: what the columns of tables mean.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Format = "table",
) -> None:
    """List what can be chosen in each group.

    One line a choice; the default has a star. Nothing is imported: --allow-module is taken so that the flags of
    paceline train may be given here too.

    \b
    paceline list            every group
    paceline list sync       the sync modes
    paceline list columns    what each column of a comparison means
    paceline list sync --format json | jq -r '.[].name'
    """
    if group == "columns":
        _show_columns(format)
        return
    known = {group: group_of(group, config_dir)} if group else groups(config_dir)
    if format == "json":
        show_json([_raw(choice, defaults()) for choices in known.values() for choice in choices])
    else:
        show(_for_people(known, defaults()))


def _show_columns(format: str) -> None:
    from ..tracking.glossary import glossary

    titles = ["column", "name", "unit", "meaning"]
    if format == "json":
        show_json([dict(zip(titles, row, strict=True)) for row in glossary()])
    else:
        show("\n".join(aligned([titles, *glossary()], numbers_from=len(titles))))


def _raw(choice: Choice, default: dict[str, str]) -> dict[str, Any]:
    return {
        "group": choice.group,
        "name": choice.name,
        "default": default.get(choice.group) == choice.name,
        "description": choice.description,
        "parameters": choice.knobs(),
    }


def _for_people(known: dict[str, list[Choice]], default: dict[str, str]) -> str:
    width = max(len(choice.name) for choices in known.values() for choice in choices)
    blocks: list[str] = []
    for title, choices in known.items():
        lines = [f"{title}="]
        for choice in choices:
            star = "*" if default.get(title) == choice.name else " "
            lines.append(f"{star} {choice.name:{width}}  {choice.description}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
