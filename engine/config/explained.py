"""Explains a choice by its own file: the docstring of the module that its class is in, taken apart.

A docstring is paragraphs. Indented ones are equations; one that begins with a word of `SECTIONS` says that; the first
says what the choice is; all others are its rule, in order. Papers are named with a year wherever they are named.
"""

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from .experiment import Choice
from .targets import check_target

SECTIONS = {  # of a paragraph by its first word
    "Cost": "cost",
    "Time": "cost",
    "Memory": "cost",
    "Use": "use",
    "Deviation": "deviations",
    "Deviations": "deviations",
    "Equation": "rule",
    "Rule": "rule",
    "Source": "source",
}
_PAPER = re.compile(
    r"\b[A-Z][\w'\u00c0-\u017f-]+(?:(?:, (?:and )?| and )[A-Z][\w'\u00c0-\u017f-]+| et al\.)* (?:19|20)\d\d\b"
    r'(?:,? "[^"]+")?'  # its title
    r"(?: \([^()]*\)|, (?!which |where |who |as |eq|sec|Alg)[A-Z][^,;:.()]*)?"  # where it appeared
    r"(?:(?:, Algorithm \d+)?[,;] arXiv \d{4}\.\d{4,5})?"
)
_FIRST_WORD = re.compile(r"^(\w+)")


@dataclass(frozen=True)
class ChoiceExplanation:
    """Texts are as in the file, each paragraph's lines joined; equations keep their lines."""

    group: str
    name: str
    line: str  # its YAML's first
    what: str
    rule: tuple[str, ...]  # paragraphs, equations among them
    equations: tuple[str, ...]
    cost: tuple[str, ...]
    use: tuple[str, ...]
    deviations: tuple[str, ...]
    sources: tuple[str, ...]
    file: str  # where all of it stands
    knobs: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def explain(group: str, chosen: Choice, line: str, allowed: tuple[str, ...] = ()) -> ChoiceExplanation:
    """`line`: the choice's description in its YAML. Raises `ConfigError` where its class cannot be had."""
    check_target(group, chosen.target, allowed)
    module, _, name = chosen.target.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{group}={chosen.name}: {chosen.target} cannot be had: {error}") from error
    home = inspect.getmodule(made)
    text = inspect.cleandoc((home.__doc__ if home else None) or made.__doc__ or "")
    parts = taken_apart(text)
    file = inspect.getsourcefile(made) or ""
    room = BY_NAME[group].modules[0].partition(".")[2]
    return ChoiceExplanation(
        group,
        chosen.name,
        line,
        what=" ".join(parts["what"]) or line,
        rule=tuple(parts["rule"]),
        equations=tuple(each for each in parts["rule"] if is_equation(each)) or tuple(parts["equation"]),
        cost=tuple(parts["cost"]),
        use=tuple(parts["use"]),
        deviations=tuple(parts["deviations"]),
        sources=tuple(_sources(text, parts["source"])),
        file=file[file.rfind(f"{room}/") :] if f"{room}/" in file else Path(file).name,
        knobs=dict(chosen.knobs),
    )


def is_equation(paragraph: str) -> bool:
    return paragraph.startswith("    ")


def taken_apart(text: str) -> dict[str, list[str]]:
    """Paragraphs by what they are: what, rule, equation, cost, use, deviations, source."""
    found: dict[str, list[str]] = {kind: [] for kind in ("what", "equation", *SECTIONS.values())}
    kind = "what"
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if is_equation(paragraph):
            found["rule" if kind == "what" else kind].append(paragraph)  # a cost may have equations of its own
            continue
        words = _joined(paragraph)
        first = _FIRST_WORD.match(words)
        named = SECTIONS.get(first[1]) if first else None
        kind = named or ("rule" if found["what"] else "what")
        if words:
            found[kind].append(words)
        if first and first[1] in ("Equation", "Rule"):
            found["equation"].append(words)
    return found


def _joined(text: str) -> str:
    """Returns the text on one line. A word that a line's end breaks at its hyphen becomes one again."""
    return " ".join(re.sub(r"(?<=\w)-\n\s*(?=[^\W\d_])(?!(?:and|or)\b)", "-", text).split())


def _sources(text: str, stated: list[str]) -> list[str]:
    """Papers in the order in which they are named, each with its title where that is said anywhere."""
    flat = _joined(text)
    papers: dict[str, str] = {}
    for each in _PAPER.findall(flat):
        year = re.search(r"(?:19|20)\d\d", each)
        key = each[: year.end()] if year else each
        if len(each) > len(papers.get(key, "")):
            papers[key] = each.strip(" ,")
    return [*papers.values(), *(each.removeprefix("Source: ") for each in stated if not _PAPER.search(each))]
