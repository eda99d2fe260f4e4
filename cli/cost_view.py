"""What `paceline cost` answers: in sentences, with the formula and every input, or as one JSON document."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..cost.quantity import Quantity
from ..cost.training_time import YEAR
from .cost_numbers import short
from .output import aligned, show, show_json


@dataclass(frozen=True)
class Answer:
    question: str
    says: list[str]
    formulas: list[str]
    inputs: list[Quantity]
    results: dict[str, Any]  # raw, with units in the names
    table: list[list[str]] = field(default_factory=list)


def show_answer(answer: Answer, format: str) -> None:
    if format == "json":
        inputs = [asdict(quantity) for quantity in answer.inputs]
        show_json(
            {
                "question": answer.question,
                "results": answer.results,
                "formulas": answer.formulas,
                "inputs": inputs,
            }
        )
        return
    rows = [[each.symbol, short(each.value), each.unit, each.source] for each in answer.inputs]
    values = max(len(row[1]) for row in rows)
    rows = [[symbol, value.rjust(values), unit, source] for symbol, value, unit, source in rows]
    paragraphs = [
        answer.says,
        aligned(answer.table, numbers_from=1) if answer.table else [],
        answer.formulas,
        aligned(rows, numbers_from=4),
    ]
    show("\n\n".join("\n".join(lines) for lines in paragraphs if lines))


def duration(seconds: float) -> str:
    """As a person would say it, in whole numbers from ten on: 288 years, 34 days, 3.5 hours."""
    for unit, size, least in (("years", YEAR, 2), ("days", 86_400, 2), ("hours", 3600, 1), ("minutes", 60, 1)):
        if seconds >= least * size:
            return f"{_number(seconds / size)} {unit}"
    return f"{_number(seconds)} seconds"


def dollars(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:,.2f}"


def _number(value: float) -> str:
    if value >= 1e9:
        return short(value)
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
