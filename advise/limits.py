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
    """Returns whether the row is within both limits. A row without a time is within none."""
    if row.seconds is None:
        return question.budget is None and question.deadline is None
    missed = _missed(question, row)
    return missed.dollars <= 0 and missed.seconds <= 0


def nearest(question: Question, rows: Sequence[Predicted], most: int = 3) -> list[Missed]:
    """Returns the nearest misses if no row meets the limits, of different layouts: the ones that miss by the smallest
    share, and of two limits also the cheapest of those in time and the soonest of those within the budget.
    """
    deadline, budget = question.deadline or 1, question.budget or 1  # without it nothing is missed

    def share(each: Missed) -> tuple[float, ...]:
        return each.seconds / deadline + each.dollars / budget, each.row.dollars or 0.0, each.row.seconds or 0.0

    timed = sorted((_missed(question, row) for row in rows if row.seconds is not None), key=share)
    in_time = [each for each in timed if each.seconds <= 0]
    paid = [each for each in timed if each.dollars <= 0]
    found: dict[tuple[str, str, int], Missed] = {}
    for each in [*in_time[:1], *paid[:1], *timed]:
        found.setdefault(each.row.candidate.kind, each)
    return sorted(list(found.values())[:most], key=share)


def beyond(question: Question, rows: Sequence[Predicted]) -> list[Missed]:
    """Returns the rows that miss a limit, in the order of `rows`, each of which has a time."""
    return [_missed(question, row) for row in rows if not meets(question, row)]


def _missed(question: Question, row: Predicted) -> Missed:
    assert row.seconds is not None
    seconds = 0.0 if question.deadline is None else max(in_all(question, row.seconds) - question.deadline, 0.0)
    money = 0.0 if question.budget is None or row.dollars is None else max(row.dollars - question.budget, 0.0)
    return Missed(row, money, seconds)
