"""Finds the nearest setting that would fit if nothing does: more hosts, or fewer samples a step, whichever
comes first.
"""

from dataclasses import replace

from ..conf.errors import ConfigError
from ..cost.predicted import NotPredicted
from .accelerators import search
from .answer import Answer, closed_form
from .commands import command
from .question import Question, ask, key_of
from .ranking import ranked

MOST_HOSTS, FEWEST = 64, 1


def that_would_fit(found: Answer) -> str:
    """A command; "" where none was found."""
    if found.ground is None:
        return ""
    for question in _easier(found.question):
        try:
            fit = search(closed_form(question)).fit
        except (NotPredicted, ConfigError):
            continue
        fit = [row for row in fit if row.over_device <= 0 and row.over_host <= 0]
        if fit:
            return command(question, ranked(fit, "time")[0].candidate)
    return ""


def _easier(question: Question) -> list[Question]:
    machine = question.experiment.hardware.machine
    assert machine is not None
    workers = question.experiment.hardware.workers or machine.devices
    hosts = -(-workers // machine.devices)
    batches = []
    batch = question.batch // 2
    while batch >= workers:
        batches.append(replace(question, batch=batch))
        batch //= 2
    more = []
    kept = [text for text in question.overrides if key_of(text) not in ("hardware.hosts", "hardware.workers")]
    n = hosts * 2
    while n <= MOST_HOSTS and machine.network is not None:
        more.append(
            ask(
                [*kept, f"hardware.hosts={n}"], question.batch, config_dir=question.config_dir, allowed=question.allowed
            )
        )
        n *= 2
    return [*more, *batches]
