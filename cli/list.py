"""`paceline list`: what can be chosen."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .choices import ListedChoice, defaults, group_of, groups
from .completion import complete_group
from .options import AllowModule, ConfigDir, Format
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
    paceline list pairs      which sync modes each strategy takes, and what that means
    paceline list terms      what worker, replica, stage, ... mean
    paceline list columns    what each column of a comparison means
    paceline list sync --format json | jq -r '.[].name'
    """
    match group:
        case "columns":
            _show_columns(format)
        case "terms":
            _show_terms(format)
        case "pairs":
            _show_pairs(config_dir, tuple(allow_module or ()), format)
        case _:
            _show_choices(group, config_dir, format)


def _show_choices(group: str | None, config_dir: Path | None, format: str) -> None:
    known = {group: group_of(group, config_dir)} if group else groups(config_dir)
    if format == "json":
        show_json([_raw(choice, defaults()) for choices in known.values() for choice in choices])
    else:
        show(_for_people(known, defaults(), with_knobs=group is not None))


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
    with results_alone():  # a user's classes are built
        every = list(_pairs(config_dir, allowed))
    if format == "json":
        show_json([asdict(pair) for pair in every])
        return
    strategies = list(dict.fromkeys(pair.strategy for pair in every))
    modes = list(dict.fromkeys(pair.sync for pair in every))
    taken = {(pair.strategy, pair.sync): "yes" if pair.accepted else "-" for pair in every}
    table = [["sync", *strategies], *([mode, *(taken[each, mode] for each in strategies)] for mode in modes)]
    meanings: dict[tuple[str, str], list[str]] = {}
    for pair in every:
        if pair.accepted:
            meanings.setdefault((pair.strategy, pair.meaning), []).append(pair.sync)
    notes: list[str] = []
    for (strategy, meaning), taking in sorted(meanings.items(), key=lambda item: (item[0][0], -len(item[1]))):
        most = max(len(modes) for (each, _), modes in meanings.items() if each == strategy)
        which = f" with {', '.join(taking)}" if len(taking) < most else ""
        notes.append(f"{strategy}{which}: {meaning}")
    show("\n".join([*aligned(table, numbers_from=len(table[0])), "", *notes, *_takers(every)]))


def _takers(every: "list[Pair]") -> list[str]:
    """Returns a line for each group: which pairs accept other choices of it than the default, and which choices."""
    lines: list[str] = []
    for group in dict.fromkeys(group for pair in every for group in pair.takes):
        all_others = {name for pair in every for name in pair.takes.get(group, [])}
        modes: dict[tuple[str, str], list[str]] = {}  # by strategy and what is taken of the group
        for pair in every:
            if group in pair.takes:
                what = _some_of(all_others, pair.takes[group])
                modes.setdefault((pair.strategy, what), []).append(pair.sync)
        strategies: dict[tuple[str, str], list[str]] = {}
        for (strategy, what), names in modes.items():
            strategies.setdefault((what, ", ".join(names)), []).append(strategy)
        lines += [
            f"{group}={what} is for {names} with {', '.join(those)}" for (what, names), those in strategies.items()
        ]
    return lines


def _some_of(every: set[str], names: list[str]) -> str:
    """Nothing for all of them."""
    left = sorted(every - {*names})
    if not left:
        return ""
    return f" but {', '.join(left)}" if len(left) < len(names) else ", ".join(names)


def _pairs(config_dir: Path | None, allowed: tuple[str, ...]) -> "Iterator[Pair]":
    import sys

    from ..engine.config.experiment import Choice
    from ..engine.features.pairs import pairs

    def chosen(group: str) -> list[Choice]:
        choices = group_of(group, config_dir)
        return [Choice(name=each.name, target=each.target(), knobs=each.knobs()) for each in choices]

    if allowed and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's module lies where the user is
    return pairs(chosen("strategy"), chosen("sync"), allowed)


def _value(value: Any) -> str:
    from ..engine.base.grammar import as_override

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
