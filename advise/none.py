"""Says why there is no candidate to show, by how much the limits are missed, and which comes nearest."""

from ..cost.durations import time_of
from .answer import Answer
from .commands import command
from .limits import in_all
from .nearest import that_would_fit
from .why_not import too_much


def why_none(found: Answer) -> str:
    question = found.question
    if found.missed:
        limit = "both limits" if question.budget and question.deadline else "the limit"
        lines = [f"no configuration meets {limit}"]
        for missed in found.missed:
            assert missed.row.seconds is not None
            whole = f"{time_of(in_all(question, missed.row.seconds))}, ${missed.row.dollars or 0:,.2f}"
            by = [
                *([f"--budget by ${missed.dollars:,.2f}"] if missed.dollars else []),
                *([f"--deadline by {time_of(missed.seconds)}"] if missed.seconds else []),
            ]
            lines.append(f"{whole} misses {' and '.join(by)}: {command(question, missed.row.candidate)}")
        return "; ".join(lines)
    if not found.nearest:
        told = [line for family in found.families for line in family.others]
        why = (told or found.notes or ["what was typed allows none"])[0]
        return f"none of {found.points:,} configurations can be: {why}"
    least = found.nearest[0]
    would = that_would_fit(found)
    return (
        f"nothing fits, of {found.points:,} configurations: the nearest lacks memory, {too_much(least)}: "
        f"{command(question, least.candidate)}" + (f"; this would fit: {would}" if would else "")
    )
