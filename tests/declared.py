"""What objects that a test has built lack of what the others need."""

from choices import CHOSEN, USUAL

from paceline.engine.config.experiment import Choice, shipped
from paceline.engine.features import injected
from paceline.engine.features.compatibility import Selection, unmet
from paceline.strategies import Strategy, Sync
from paceline.strategies.core.terms import Term
from paceline.strategies.data_parallel import DataParallel


def unmet_terms(sync: Sync, strategy: Strategy | None = None, **others: object) -> set[Term]:
    """Returns the terms that are needed and lacking.

    Args:
        others: by group, what the strategy or the sync mode was given; the usual choices of the other groups.
    """
    choices = {group.name: shipped(group.name, str(group.usual)) for group in injected.injected_groups()}
    choices |= {group: Choice(name="own", target="own.Own", knobs={}) for group in others}
    choices |= {"strategy": CHOSEN["strategy", "data_parallel"], "sync": CHOSEN["sync", "bsp"]}
    objects = {**USUAL, **others, "strategy": strategy or DataParallel(), "sync": sync}
    return {each.need.term for each in unmet(Selection(choices, objects))}
