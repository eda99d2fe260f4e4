"""What an attack and a rule come to in a run, other than one may think; nothing of it is an error."""

from ..strategies.exchange.aggregate import Aggregator
from ..strategies.exchange.attack import Attack, Honest
from . import given
from .parts import Parts


def notes_on(parts: Parts, steps: int | None) -> list[str]:
    """A sentence each. `steps`: of the run; None where the data must say."""
    attack, rule = parts.of_groups["attack"], parts.of_groups["aggregate"]
    assert isinstance(attack, Attack) and isinstance(rule, Aggregator)
    if isinstance(attack, Honest):
        return []
    found: list[str] = []
    lying, replicas = len(attack.liars(parts.layout.replicas)), parts.layout.replicas
    if "attack" not in given.taken(type(parts.sync)):  # else the sync mode says so, by its rule
        found.append(
            f"attack.workers={attack.workers}: {lying} of {replicas} replicas lie, and no rule looks at what they "
            "send: training may go anywhere"
            if lying
            else f"attack.workers={attack.workers}: nobody lies"
        )
    if steps is not None and attack.from_step >= steps:
        found.append(
            f"attack.from_step={attack.from_step}: the run has {steps:,} steps, and nobody lies in any of them"
        )
    if rule.trusted in attack.liars(parts.layout.replicas):
        found.append(
            f"aggregate.trusted={rule.trusted}: this replica lies (attack.workers={attack.workers}), and the rule "
            "takes it at its word: it follows the lie"
        )
    return found
