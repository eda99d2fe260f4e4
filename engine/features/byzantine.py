"""Warns about how the attack and the aggregation rule interact in a run. None of it is an error."""

from ...conf.counted import counted
from ...exchange.aggregate import Aggregator
from ...exchange.attack import Attack
from ...strategies.core.protocols import SideBySide
from . import injected
from .feature import Parts


def notes_on(parts: Parts, attack: Attack, steps: int | None) -> list[str]:
    """A sentence each. `steps`: of the run; None where the data must say."""
    rule = parts.of_groups["aggregate"]
    assert isinstance(rule, Aggregator)
    found: list[str] = []
    lying, replicas = len(attack.byzantine(parts.layout.replicas)), parts.layout.replicas
    if "attack" not in injected.accepted(parts.sync):  # else the sync mode says so, by its rule
        comes = _what_comes_of(lying, replicas, isinstance(parts.sync, SideBySide))
        found.append(f"attack.workers={attack.workers}: {comes}")
    if steps is not None and attack.from_step >= steps:
        found.append(
            f"attack.from_step={attack.from_step}: the run has {counted(steps, 'step')}, and nobody lies in any of them"
        )
    if rule.trusted in attack.byzantine(parts.layout.replicas):
        found.append(
            f"aggregate.trusted={rule.trusted}: this replica lies (attack.workers={attack.workers}), and the rule "
            "takes it at its word: it follows the lie"
        )
    return found


def _what_comes_of(lying: int, replicas: int, experts: bool) -> str:
    """Describes the effect of an attack if no rule looks at the updates. `experts`: they send nothing, and each answers
    some samples.
    """
    if lying == 0:
        return "nobody lies"
    who = f"{lying} of {replicas} replicas lie"
    if replicas == 1:
        return f"{who}: all that is learnt is what the attack makes of the samples"
    if experts:
        return (
            f"{who}, and nobody sends anything: their experts learn the lie and answer the samples that are nearest to "
            "their parts; the other experts never see it"
        )
    return f"{who}, and no rule looks at what is sent: training may go anywhere"
