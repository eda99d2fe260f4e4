"""Time and money of a whole training, or of a step where no tokens are given; and which limits those meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from .candidate import Predicted
from .question import Question


def in_all(question: Question, seconds: float) -> float:
    """Seconds of the whole training, or of a step."""
    if question.tokens is None or question.of_sample is None:
        return seconds
    return question.tokens / (question.batch * question.of_sample) * seconds


def dollars(question: Question, seconds: float, hosts: int) -> float | None:
    """None where no price is known."""
    machine = question.experiment.hardware.machine
    if machine is None or machine.price_per_hour is None:
        return None
    return in_all(question, seconds) / 3600 * hosts * machine.price_per_hour


@dataclass(frozen=True)
class Missed:
    """A candidate that misses a limit, and by how much."""

    row: Predicted
    dollars: float  # more than the budget; 0 where it is met
    seconds: float  # more than the deadline


def meets(question: Question, row: Predicted) -> bool:
    missed = _missed(question, row)
    return missed.dollars <= 0 and missed.seconds <= 0


def nearest(question: Question, rows: Sequence[Predicted], most: int = 3) -> list[Missed]:
    """Returns the nearest misses if no row meets both limits, of different layouts: the cheapest of those in time, the
    soonest of those within the budget, then the ones that miss by the smallest share. If there are none of a kind, it
    is the cheapest or the soonest of all.
    """
    timed = [_missed(question, row) for row in rows if row.seconds is not None and row.dollars is not None]
    in_time = [each for each in timed if each.seconds <= 0]
    paid = [each for each in timed if each.dollars <= 0]
    first = sorted(in_time or timed, key=lambda each: (each.row.dollars, each.row.seconds))[:1]
    first += sorted(paid or timed, key=lambda each: (each.row.seconds, each.row.dollars))[:1]
    deadline, budget = question.deadline or 1, question.budget or 1  # without it nothing is missed
    rest = sorted(timed, key=lambda each: each.seconds / deadline + each.dollars / budget)
    found: dict[tuple[str, str, int], Missed] = {}
    for each in [*first, *rest]:
        found.setdefault(each.row.candidate.kind, each)
    return list(found.values())[:most]


def beyond(question: Question, rows: Sequence[Predicted]) -> list[Missed]:
    """Returns the rows that miss a limit, in the order of `rows`, each of which has a time."""
    return [_missed(question, row) for row in rows if not meets(question, row)]


def _missed(question: Question, row: Predicted) -> Missed:
    assert row.seconds is not None
    seconds = 0.0 if question.deadline is None else max(in_all(question, row.seconds) - question.deadline, 0.0)
    money = 0.0 if question.budget is None or row.dollars is None else max(row.dollars - question.budget, 0.0)
    return Missed(row, money, seconds)
