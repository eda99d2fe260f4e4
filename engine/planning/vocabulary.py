"""The vocabulary of compatibility with our own choices: which of them lack a term, and which need it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from torch import nn

from ...conf.errors import ConfigError
from ...conf.groups import GROUPS
from ...strategies.core.terms import VOCABULARY, Compatible, Need, Term, lacks_of, needs_of
from ...tasks.models.unsupervised import Unsupervised
from ..config.compose import compose
from ..config.experiment import CONF, Experiment, shipped
from ..config.targets import base_of, build, load_maker
from ..features import injected, iterating, phases, rates
from ..features.compatibility import LAYOUT
from ..features.order import FEATURES, features_of
from .build import choose

MODELLED = "hardware=virtual"  # some features are for modelled time alone


@dataclass(frozen=True)
class TermUse:
    """A term with our own choices, as their defaults are.

    Args:
        offering: the choices of its group that have it.
        lacking: those that do not.
        needing: the choices of other groups that need it, as `GROUP=CHOICE`, and the keys that do.
    """

    term: Term
    offering: tuple[str, ...]
    lacking: tuple[str, ...]
    needing: tuple[str, ...]


def vocabulary() -> list[TermUse]:
    """Returns each term that some choice needs and some choice lacks."""
    usual = injected.usual()
    made: list[tuple[str, str, Compatible]] = []
    for group in (*LAYOUT, *usual):
        for file in sorted((CONF / group).glob("*.yaml")):
            bare = {"seed": 0} if group in usual else usual
            chosen = build(group, shipped(group, file.stem), base_of(group), (), bare)
            if isinstance(chosen, Compatible):
                made.append((group, file.stem, chosen))
    needed = [(f"{group}={name}", need.term) for group, name, each in made for need in needs_of(each)]
    needed += [(override, need.term) for override in _of_features() for need in _needs(override)]
    found: list[TermUse] = []
    for term in VOCABULARY:
        needing = tuple(dict.fromkeys(who for who, other in needed if other == term))
        own = [(name, each) for group, name, each in made if group == term.group]
        lacking = tuple(name for name, each in own if term in lacks_of(each))
        if needing and lacking:
            found.append(TermUse(term, tuple(name for name, _ in own if name not in lacking), lacking, needing))
    return found


def _of_features() -> Iterator[str]:
    """Yields the overrides that may choose a feature: other choices than these above, and keys that are on or off."""
    for group in GROUPS:
        if not group.injected and group.name not in LAYOUT:
            yield from (f"{group.name}={file.stem}" for file in sorted((CONF / group.name).glob("*.yaml")))
    for feature in FEATURES:
        if feature.key in (fields := Experiment.model_fields) and fields[feature.key].annotation is bool:
            yield f"{feature.key}=true"


def _needs(override: str) -> list[Need]:
    """Returns the needs of a run with one override; none if it goes only with others, such as the path of a file."""
    for more in ([], [MODELLED]):
        with suppress(ConfigError):
            return _needs_of(compose([override, *more]))
    return []


def _needs_of(experiment: Experiment) -> list[Need]:
    chosen, _ = choose(experiment, (), None)
    features = features_of(chosen)
    asked = [*phases.needs(features, experiment), *rates.needs(experiment, chosen.schedule)]
    needs = [need for each in features for need in each.needs(chosen)] + [need for _, need in asked]
    maker = load_maker("model", experiment.model.target, nn.Module, ())
    if isinstance(maker, type) and issubclass(maker, Unsupervised):
        needs += iterating.needs(experiment)
    return needs
