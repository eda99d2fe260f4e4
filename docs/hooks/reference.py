"""The reference of the site: pages of choices, commands and Python, from the product's own words."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import players
import typer.main
from markdown.extensions.toc import slugify

from paceline.cli.choices import ListedChoice, defaults, groups
from paceline.cli.main import app
from paceline.conf.grammar import as_override
from paceline.conf.groups import BY_NAME
from paceline.engine.config.experiment import Choice
from paceline.engine.config.explained import ChoiceExplanation, explain
from paceline.engine.features.pairs import pairs

PYTHON = {  # what the pages name -> where it is defined
    "paceline.engine": {
        "run": "engine.api.session.run",
        "prepare": "engine.api.preparing.prepare",
        "plan": "engine.api.preparing.plan",
        "advise": "engine.api.advising.advise",
        "compare": "engine.api.comparison.compare",
        "load": "engine.api.results.load",
        "Result": "engine.api.results.Result",
        "Comparison": "engine.api.comparison.Comparison",
        "Advice": "engine.api.advising.Advice",
    },
    "paceline.wrap": {"wrap": "wrap.run.wrap", "Run": "wrap.run.Run"},
    "paceline.testing": {
        "sync_checks": "testing.pairs.sync_checks",
        "strategy_checks": "testing.pairs.strategy_checks",
        "compressor_checks": "testing.compressors.compressor_checks",
        "aggregator_checks": "testing.aggregators.aggregator_checks",
    },
}
WIDTH = 100  # characters of a line of help


def pages() -> dict[str, str]:
    """Returns each page's Markdown by its path in the site."""
    return {**_of_commands(), **_of_choices(), "reference/python.md": _of_python()}


# -- commands


def _of_commands() -> dict[str, str]:
    group = typer.main.get_command(app)
    found = {"reference/commands/index.md": f"# Commands\n{_help(group, 'paceline')}"}
    for name, command in sorted(vars(group)["commands"].items()):
        if not command.hidden:
            found[f"reference/commands/{name}.md"] = f"# paceline {name}\n{_help(command, f'paceline {name}')}"
    return found


def _help(command: Any, name: str) -> str:
    context = command.context_class(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    return _fenced(command.get_help(context))


# -- choices


def _of_choices() -> dict[str, str]:
    known = groups()
    goes_with = _accepted(known)
    found: dict[str, str] = {}
    rows: list[str] = []
    for group, choices in known.items():
        path = f"{group.replace('/', '-')}.md"
        meaning = BY_NAME[group].meaning if group in BY_NAME else ""
        rows.append(f"| [{group}]({path}) | {len(choices)} | {_escaped(meaning)} |")
        sections = [_section(choice, goes_with.get(f"{group}={choice.name}", [])) for choice in choices]
        found[f"reference/choices/{path}"] = "\n\n".join([f"# {group}=", _escaped(meaning), *sections]) + "\n"
    head = (
        "# Choices\nEvery group of `GROUP=CHOICE`, with its choices.\n\n| group | choices | chooses |\n|---|---:|---|\n"
    )
    return {"reference/choices/index.md": head + "\n".join(rows) + "\n", **found}


def _section(choice: ListedChoice, goes_with: list[str]) -> str:
    name = f"{choice.group}={choice.name}"
    star = " (default)" if defaults().get(choice.group) == choice.name else ""
    parts = [f"## {choice.name}", _escaped(choice.description) + star]
    knobs = choice.knobs()
    if choice.group in BY_NAME and choice.target():
        chosen = Choice(name=choice.name, target=choice.target(), knobs=knobs)
        parts += _explained(explain(choice.group, chosen, choice.description))
        parts.append(f"**Example**\n\n{_fenced(f'paceline explain {name}')}")
        if title := _played().get(name):
            parts.append(f"**Player** [{title}](../../{players.PAGE}#{slugify(title, '-')})")
    elif choice.group != "experiment":
        parts.append(f"**Example**\n\n{_fenced(f'paceline plan {_override(choice)}')}")
    flat = [
        f"{_key(choice)}.{key}={as_override(value)}" for key, value in knobs.items() if not isinstance(value, Mapping)
    ]
    if flat and choice.group != "experiment":
        parts.append(f"**Knobs**\n\n{_fenced(chr(10).join(flat))}")
    if goes_with:
        parts.append(
            f"**Goes with** {', '.join(f'`{each}`' for each in goes_with)} ([all pairs](../../compatibility.md))"
        )
    return "\n\n".join(parts)


@cache
def _played() -> dict[str, str]:
    return players.titles((Path(__file__).parents[1] / players.PAGE).read_text())


def _key(choice: ListedChoice) -> str:
    group = choice.group.replace("/", ".")
    return f"{group}.{choice.name}" if group == "callbacks" else group


def _override(choice: ListedChoice) -> str:
    return f"callbacks=[{choice.name}]" if choice.group == "callbacks" else f"{choice.group}={choice.name}"


def _explained(explained: ChoiceExplanation) -> list[str]:
    told = [
        ("What it does", (explained.what, *explained.rule)),
        ("Cost", explained.cost),
        ("When to use it", explained.use),
        ("Deviations", explained.deviations),
        ("Papers", explained.sources),
    ]
    return [f"**{head}**\n\n{chr(10).join(map(_paragraph, texts))}" for head, texts in told if texts]


def _paragraph(text: str) -> str:
    return _fenced(textwrap.dedent(text)) if text.startswith("    ") else f"{_escaped(text)}\n"


def _accepted(known: Mapping[str, list[ListedChoice]]) -> dict[str, list[str]]:
    """Returns by strategy or sync mode the sync modes or strategies that it goes with."""
    chosen = {
        group: [Choice(name=each.name, target=each.target(), knobs=each.knobs()) for each in known[group]]
        for group in ("strategy", "sync")
    }
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in pairs(chosen["strategy"], chosen["sync"], ()):
        if each.accepted:
            found[f"strategy={each.strategy}"].append(f"sync={each.sync}")
            found[f"sync={each.sync}"].append(f"strategy={each.strategy}")
    return found


# -- Python


def _of_python() -> str:
    parts = ["# Python\nThe classes and functions that [paceline from Python](../python.md) and other pages use."]
    for module, names in PYTHON.items():
        parts.append(f"## {module}")
        for name, path in names.items():
            options = f"    options:\n      heading: {module}.{name}\n      toc_label: {name}\n      heading_level: 3"
            parts.append(f"::: {path}\n{options}")
    return "\n\n".join(parts) + "\n"


# -- Markdown


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _escaped(text: str) -> str:
    """Returns plain text in which nothing but `code` is markup."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([\\*_\[\]<>#|])", r"\\\1", piece) for piece in pieces)
