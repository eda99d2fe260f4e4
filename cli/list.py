"""`paceline list`: what can be chosen."""

from typing import Annotated

import typer

from .choices import defaults, group_of, groups
from .completion import complete_group
from .options import AllowModule, ConfigDir
from .output import aligned, show


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
) -> None:
    """List what can be chosen in each group.

    One line a choice; the default has a star. Nothing is imported: --allow-module is taken so that the flags of
    paceline train may be given here too.

    \b
    paceline list         every group
    paceline list sync    the sync modes
    paceline list columns    what each column of a comparison means
    """
    if group == "columns":
        from ..tracking.glossary import glossary

        show("\n".join(aligned([["column", "name", "unit", "meaning"], *glossary()], numbers_from=4)))
        return
    known = {group: group_of(group, config_dir)} if group else groups(config_dir)
    default = defaults()
    width = max(len(choice.name) for choices in known.values() for choice in choices)
    blocks: list[str] = []
    for title, choices in known.items():
        lines = [f"{title}="]
        for choice in choices:
            star = "*" if default.get(title) == choice.name else " "
            lines.append(f"{star} {choice.name:{width}}  {choice.description}".rstrip())
        blocks.append("\n".join(lines))
    show("\n\n".join(blocks))
