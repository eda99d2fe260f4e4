"""Says why there is no candidate to show: the nearest three and what each lacks, and what would fit."""

from ..conf.counted import counted
from ..cost.durations import time_of
from .answer import Answer
from .commands import command
from .limits import in_all
from .nearest import that_would_fit
from .question import Question, key_of
from .why_not import too_much

MOST = 3


def why_none(found: Answer) -> str:
    question = found.question
    left = f" ({found.unplanned} others were not planned)" if found.unplanned else ""
    if found.missed:
        limit = "both limits" if question.budget and question.deadline else "the limit"
        lines: list[str] = []
        for missed in found.missed:
            assert missed.row.seconds is not None
            price = "" if missed.row.dollars is None else f", ${missed.row.dollars:,.2f}"
            whole = f"{time_of(in_all(question, missed.row.seconds))}{price}"
            by = [
                *([f"--budget by ${missed.dollars:,.2f}"] if missed.dollars else []),
                *([f"--deadline by {time_of(missed.seconds)}"] if missed.seconds else []),
            ]
            lines.append(f"{whole} misses {' and '.join(by)}: {command(question, missed.row.candidate)}")
        return _listed(f"no configuration meets {limit}{left}; the nearest:", lines)
    if not found.nearest:
        told = [f"{family.name}: {line}" for family in found.families for line in family.others]
        why = (told or found.notes or [_allows_none(question)])[:MOST]
        return _listed(f"none of {counted(found.points, 'configuration')} can be{left}; the reasons:", why)
    lines = [f"{too_much(row)}: {command(question, row.candidate)}" for row in found.nearest]
    would = that_would_fit(found)
    first = f"nothing fits, of {counted(found.points, 'configuration')}{left}; the nearest:"
    return _listed(first, lines) + (f"\nthis would fit: {would}" if would else "")


def _allows_none(question: Question) -> str:
    typed = [text for text in question.overrides if key_of(text).partition(".")[0] in ("strategy", "sync")]
    return f"{' '.join(typed) or 'your command'}: no layout on this hardware has it. Leave it out."


def _listed(first: str, lines: list[str]) -> str:
    return "\n".join([first, *(f"{i}. {line}" for i, line in enumerate(lines, 1))])
