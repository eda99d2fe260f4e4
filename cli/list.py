"""`paceline list`: what can be chosen."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..conf.errors import ConfigError
from .choices import ListedChoice, defaults, group_of, groups
from .completion import complete_group
from .options import AllowModule, ConfigDir
from .output import aligned, results_alone, show, show_json

if TYPE_CHECKING:
    from ..engine.features.pairs import Pair


def list_choices(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="Only this group. Or pairs: which sync modes each strategy takes; terms, columns: what words mean.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every choice of every group.")] = False,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Annotated[
        Literal["table", "json", "markdown"],
        typer.Option(
            help="json: one document on standard output, raw values. markdown: of pairs, docs/compatibility.md."
        ),
    ] = "table",
) -> None:
    """List what can be chosen in each group.

    One screen without GROUP: what people choose first. With GROUP, one line a choice and one of its keys; the default
    has a star. Nothing is imported: --allow-module is taken so that the flags of
    paceline train may be given here too.

    \b
    paceline list            what people choose first, in one screen
    paceline list --all      every choice of every group
    paceline list sync       the sync modes
    paceline list pairs      which sync modes each strategy takes, and what that means
    paceline list terms      what worker, replica, stage, ... mean
    paceline list columns    what each column of a comparison means
    paceline list sync --format json | jq -r '.[].name'
    """
    if format == "markdown" and group != "pairs":
        raise ConfigError("--format markdown: is for pairs alone. Choose --format table or json.")
    match group:
        case "columns":
            _show_columns(format)
        case "terms":
            _show_terms(format)
        case "pairs":
            _show_pairs(config_dir, tuple(allow_module or ()), format)
        case _:
            _show_choices(group, every, config_dir, format)


def _show_choices(group: str | None, every: bool, config_dir: Path | None, format: str) -> None:
    known = {group: group_of(group, config_dir)} if group else groups(config_dir)
    if format == "json":
        show_json([_raw(choice, defaults()) for choice in _flat(known)])
    elif group or every:
        show(_for_people(known, defaults(), with_knobs=group is not None))
    else:
        from .list_first import overview

        there = Path(os.path.realpath(config_dir)) if config_dir else None
        own = {
            f"{each.group}={each.name}"
            for each in _flat(known)
            if there and Path(os.path.realpath(each.path)).is_relative_to(there)
        }
        show(overview(known, defaults(), own))


def _flat(known: dict[str, list[ListedChoice]]) -> Iterator[ListedChoice]:
    return (choice for choices in known.values() for choice in choices)


def _show_columns(format: str) -> None:
    from ..tracking.glossary import glossary

    titles = ["column", "name", "unit", "meaning"]
    if format == "json":
        show_json([dict(zip(titles, row, strict=True)) for row in glossary()])
    else:
        show("\n".join(aligned([titles, *glossary()], numbers_from=len(titles))))


def _show_terms(format: str) -> None:
    from ..tracking.glossary import TERMS

    if format == "json":
        show_json([{"term": term, "meaning": meaning} for term, meaning in TERMS.items()])
    else:
        show("\n".join(aligned([list(line) for line in TERMS.items()], numbers_from=2)))


def _show_pairs(config_dir: Path | None, allowed: tuple[str, ...], format: str) -> None:
    """Shows which strategies accept which sync modes, by the rules that check a run."""
    from .pairs_view import for_terminal, page

    with results_alone():  # a user's classes are built
        every = list(_pairs(config_dir, allowed))
    match format:
        case "json":
            show_json([asdict(pair) for pair in every])
        case "markdown":
            from ..engine.planning.vocabulary import vocabulary

            show(page(every, vocabulary()).rstrip("\n"))
        case _:
            show(for_terminal(every))


def _pairs(config_dir: Path | None, allowed: tuple[str, ...]) -> "Iterator[Pair]":
    from ..engine.config.experiment import Choice
    from ..engine.features.pairs import pairs

    def chosen(group: str) -> list[Choice]:
        choices = group_of(group, config_dir)
        return [Choice(name=each.name, target=each.target(), knobs=each.knobs()) for each in choices]

    return pairs(chosen("strategy"), chosen("sync"), allowed)


def _value(value: Any) -> str:
    from ..conf.grammar import as_override

    return as_override(value)


def _raw(choice: ListedChoice, default: dict[str, str]) -> dict[str, Any]:
    return {
        "group": choice.group,
        "name": choice.name,
        "default": default.get(choice.group) == choice.name,
        "description": choice.description,
        "parameters": choice.knobs(),
    }


def _for_people(known: dict[str, list[ListedChoice]], default: dict[str, str], with_knobs: bool) -> str:
    """`with_knobs`: below each choice its own, with their defaults."""
    width = max(len(choice.name) for choices in known.values() for choice in choices)
    blocks: list[str] = []
    for title, choices in known.items():
        lines = [f"{title}="]
        for choice in choices:
            star = "*" if default.get(title) == choice.name else " "
            lines.append(f"{star} {choice.name:{width}}  {choice.description}".rstrip())
            knobs = {key: value for key, value in choice.knobs().items() if not isinstance(value, dict)}
            if with_knobs and knobs:
                prefix = f"{title}.{choice.name}" if title == "callbacks" else title  # each has keys of its own
                lines.append(" " * (width + 4) + " ".join(f"{prefix}.{key}={_value(knobs[key])}" for key in knobs))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
