"""Decides which choices go together, by what each needs and what the others lack (strategies/core/terms.py).

The same answer checks a run, words a refusal with all its reasons, finds the choices that would do, and makes the list
of pairs.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...conf.errors import MOST_NAMED, Alternative, ConfigError, Refusal
from ...conf.grammar import as_override
from ...conf.groups import BY_NAME
from ...strategies import Strategy, Sync
from ...strategies.core.terms import Compatible, Need, Term, lacks_of, needs_of
from ...tracking.files import parse_yaml
from ..config.choice_files import file_of
from ..config.experiment import CONF, Choice, Experiment, shipped
from ..config.targets import base_of, build
from . import injected
from .feature import Chosen, Feature, Injected

LAYOUT = ("strategy", "sync")  # the choices that are given the others


@dataclass(frozen=True)
class Selection:
    """A strategy, a sync mode and what they are given: the choices and the objects, by group."""

    choices: Mapping[str, Choice]
    objects: Mapping[str, Any]
    allowed: tuple[str, ...] = ()

    @classmethod
    def of(cls, choices: Mapping[str, Choice], allowed: tuple[str, ...] = ()) -> "Selection":
        """Builds the objects. Raises `ConfigError`."""
        made: Injected = {
            group: build(group, choice, base_of(group), allowed, {"seed": 0})
            for group, choice in choices.items()
            if group not in LAYOUT
        }
        both = {group: build(group, choices[group], injected.BASES[group], allowed, made) for group in LAYOUT}
        return cls(choices, {**made, **both}, allowed)

    @classmethod
    def in_run(
        cls, experiment: Experiment, of_groups: Injected, strategy: Strategy, sync: Sync, allowed: tuple[str, ...] = ()
    ) -> "Selection":
        """Returns the selection of a run, whose objects are built."""
        names = [*LAYOUT, *(group.name for group in injected.injected_groups())]
        choices = {name: experiment.choice(name) for name in names}
        return cls(choices, {**of_groups, "strategy": strategy, "sync": sync}, allowed)

    @property
    def strategy(self) -> Strategy:
        return self.objects["strategy"]

    @property
    def sync(self) -> Sync:
        return self.objects["sync"]

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The given groups that the strategy or the sync mode takes."""
        both = [self.strategy] if self.strategy.own_sync() is not None else [self.strategy, self.sync]
        return tuple(injected.accepted(*both))

    def offering(self, group: str, term: Term) -> tuple[str, Compatible]:
        """Returns the object that must have the term, where the choice of `group` needs it, and its group.

        What a strategy asks of the sync mode is asked of the mode that is chosen; other choices ask it of the update
        that the strategy owns.
        """
        own = self.strategy.own_sync() if term.group == "sync" and group != "strategy" else None
        return (term.group, self.objects[term.group]) if own is None else ("strategy", own)

    def instead(self, group: str, choice: Choice) -> "Selection":
        """Returns the selection with another choice of a group. Raises `ConfigError`."""
        other = Selection.of({**self.choices, group: choice}, self.allowed)
        if group == "strategy" or group in injected.accepted(self.strategy):
            return other
        # the run's own strategy has cut the model, and knows what its parts share
        return replace(other, objects={**other.objects, "strategy": self.strategy})

    def named(self, key: str) -> str:
        """Returns `KEY=VALUE` of a group as it was typed: the usual choice may have been given another class."""
        if key not in self.choices:
            return key
        choice, group = self.choices[key], BY_NAME[key]
        plain = choice.name != group.usual or choice.target == shipped(key, choice.name).target
        return f"{key}={choice.name}" if plain else f"{key}._target_={choice.target}"


@dataclass(frozen=True)
class Unmet:
    """A need of a choice that another choice lacks.

    Args:
        group: of the choice that has the need.
        other: the group of the choice that lacks it.
        lacking: in the words of that choice.
    """

    group: str
    need: Need
    other: str
    lacking: str


def run_of(chosen: Chosen) -> Selection:
    """Returns the selection of a run."""
    sync = chosen.sync
    if chosen.strategy.own_sync() is not None:  # the run has the strategy's own update, and not the mode
        sync = build("sync", chosen.experiment.sync, Sync, chosen.allowed, chosen.of_groups)
    return Selection.in_run(chosen.experiment, chosen.of_groups, chosen.strategy, sync, chosen.allowed)


def check_run(chosen: Chosen, asked: Iterable[tuple[str, Need]] = (), features: Sequence[Feature] = ()) -> None:
    """Refuses a run whose choices do not go together. Raises `ConfigError`.

    Args:
        asked: needs of other choices, each with its group.
        features: of the run, whose needs are asked, too.
    """
    of_features = [
        (each.key, _with_key(need, each.key, chosen.experiment)) for each in features for need in each.needs(chosen)
    ]
    elsewhere = [group for each in features for group in each.uses]
    check(run_of(chosen), [*asked, *of_features], elsewhere)


def _with_key(need: Need, group: str, experiment: Experiment) -> Need:
    if need.key:
        return need
    usual = BY_NAME[group].usual
    instead = need.instead or (f"{group}={usual}" if usual else "")
    return replace(need, key=f"{group}={experiment.choice(group).name}", instead=instead)


def unmet(
    selection: Selection, asked: Iterable[tuple[str, Need]] = (), elsewhere: Sequence[str] = ()
) -> Iterator[Unmet]:
    """Yields the needs that are not met.

    Args:
        asked: needs of other choices, each with its group.
        elsewhere: groups that something else than the strategy and the sync mode takes.
    """
    used = {*LAYOUT, *selection.used}
    own = [
        (group, need)
        for group in (*LAYOUT, *selection.used)
        if isinstance(chosen := selection.objects[group], Compatible)
        for need in needs_of(chosen)
    ]
    for group, need in (*own, *asked):
        if need.term.group not in selection.choices:
            raise ConfigError(
                f"{selection.named(group)}: needs the term {need.term.name!r} of {need.term.group!r}, which is not a "
                f"group of terms. Choose one of {', '.join(selection.choices)}."
            )
        if need.term.group not in used:
            continue
        other, offering = selection.offering(group, need.term)
        if need.term in (lacking := lacks_of(offering)):
            yield Unmet(group, need, other, lacking[need.term] or need.term.lacking)
    owner, owns = "sync", ""
    if selection.strategy.own_sync() is not None:
        owner, owns = "strategy", f"{selection.strategy.traits.owns_update}, and "
    for group in injected.injected_groups():
        name = group.name
        if name not in (*used, *elsewhere) and selection.choices[name] != shipped(name, str(group.usual)):
            yield Unmet(name, Need(Term(owner, f"takes {name}", "", ""), ""), owner, owns + f"takes no {name}")


def check(selection: Selection, asked: Iterable[tuple[str, Need]] = (), elsewhere: Sequence[str] = ()) -> None:
    """Raises a `ConfigError` that names all choices which do not go together, with what to choose instead."""
    asked = list(asked)
    if found := list(unmet(selection, asked, elsewhere)):
        raise ConfigError.of(_Refusals(selection, found, asked, elsewhere))


def reasons_of(selection: Selection, members: Sequence[Unmet]) -> Iterator[str]:
    """Yields a clause for each reason, with all that the other choice lacks for it."""
    lacking: dict[str, dict[str, list[str]]] = {}
    for each in members:
        who = selection.named(each.other)
        lacking.setdefault(each.need.because, {}).setdefault(who, []).append(each.lacking)
    for because, by_choice in lacking.items():
        clauses = [f"{who} {' and '.join(dict.fromkeys(words))}" for who, words in by_choice.items()]
        yield ", and ".join([because, *clauses] if because else clauses)


class _Refusals:
    """The refusals of a selection: one for each two choices that do not go together."""

    def __init__(
        self,
        selection: Selection,
        found: Sequence[Unmet],
        asked: Sequence[tuple[str, Need]],
        elsewhere: Sequence[str],
    ) -> None:
        self._selection, self._asked, self._elsewhere = selection, asked, elsewhere
        self._found = found
        self._known = {(each.group, each.other) for each in found}

    def __iter__(self) -> Iterator[Refusal]:
        by_pair: dict[tuple[str, str, str], list[Unmet]] = {}
        for each in self._found:
            by_pair.setdefault((each.group, each.need.key, each.other), []).append(each)
        for (group, key, other), members in by_pair.items():
            owner = key if key in self._selection.choices else group
            both = [name for name in dict.fromkeys((other, owner)) if name in self._selection.choices]
            instead = [
                Alternative(*each.need.instead.split("=", 1), without=()) for each in members if each.need.instead
            ]
            instead += [knob for name in both for knob in self._knobs(name, members)]
            instead += [choice for name in both for choice in self._choices(name, members)]
            instead = instead or list(self._usual(members))
            yield Refusal(
                self._selection.named(key or group),
                tuple(reasons_of(self._selection, members)),
                tuple(dict.fromkeys(instead)),
            )

    def _meets(self, there: Selection, members: Sequence[Unmet]) -> bool:
        """Returns whether a selection meets these needs, and leaves no need unmet that is met now."""
        pairs = {frozenset((each.group, each.other)) for each in members}
        left = [(each.group, each.other) for each in unmet(there, self._asked, self._elsewhere)]
        return not any(frozenset(other) in pairs or other not in self._known for other in left)

    def _goes(self, group: str, choice: Choice, members: Sequence[Unmet]) -> bool:
        try:
            there = self._selection.instead(group, choice)
        except ConfigError:
            return False
        if isinstance(chosen := there.objects[group], Compatible) and not chosen.stands_alone:
            return False
        return self._meets(there, members)

    def _knobs(self, group: str, members: Sequence[Unmet]) -> Iterator[Alternative]:
        """Yields each knob whose usual value, in place of the one that was typed, meets these needs."""
        chosen = self._selection.choices[group]
        for knob in typed(group, chosen):
            usual = as_override(shipped(group, chosen.name).knobs[knob])
            alternative = Alternative(f"{group}.{knob}", usual)
            if self._goes(group, in_place_of(chosen, alternative), members):
                yield alternative

    def _choices(self, group: str, members: Sequence[Unmet]) -> list[Alternative]:
        """Returns the other choices of a group that go with the knobs that were typed, nearest first.

        If none of them has all of these knobs, returns those that go with the knobs that they have.
        """
        chosen, found = self._selection.choices[group], []
        for name in nearest_first(group, chosen.name):
            without = tuple(
                f"{group}.{knob}" for knob in typed(group, chosen) if knob not in shipped(group, name).knobs
            )
            alternative = Alternative(group, name, without)
            if self._goes(group, in_place_of(chosen, alternative), members):
                found.append(alternative)
        return [each for each in found if not each.without] or found

    def _usual(self, members: Sequence[Unmet]) -> Iterator[Alternative]:
        """Yields usual choices of given groups which meet these needs: a sync mode may lack a term by one of them."""
        for group in self._selection.used:
            usual = str(BY_NAME[group].usual)
            if usual != self._selection.choices[group].name and self._goes(group, shipped(group, usual), members):
                yield Alternative(group, usual)


def typed(group: str, choice: Choice) -> dict[str, Any]:
    """Returns the knobs of a choice that differ from its file's; none where the choice is not one of ours."""
    if not file_of(group, choice.name) or shipped(group, choice.name).target != choice.target:
        return {}
    usual = shipped(group, choice.name).knobs
    return {knob: value for knob, value in choice.knobs.items() if knob in usual and value != usual[knob]}


def in_place_of(chosen: Choice, alternative: Alternative) -> Choice:
    """Returns the alternative to a choice, with the typed knobs that it has, too."""
    group, *path = alternative.key.split(".")
    if path:
        knobs = section = copy.deepcopy(chosen.knobs)
        *within, knob = path
        for name in within:
            section = section[name]
        section[knob] = parse_yaml(alternative.value)
        return chosen.model_copy(update={"knobs": knobs})
    other = shipped(group, alternative.value)
    kept = {name: value for name, value in typed(group, chosen).items() if name in other.knobs}
    return other.model_copy(update={"knobs": {**other.knobs, **kept}})


def that_run(error: ConfigError, experiment: Experiment, runs: Callable[[Experiment], bool]) -> ConfigError:
    """Returns the refusals with those alternatives that fit model, data and layout, too.

    Where none of a refusal fits, something else is wrong as well, and all of its alternatives stay.

    Args:
        runs: whether an experiment is accepted.
    """
    return ConfigError.of(replace(each, instead=_fitting(each, experiment, runs)) for each in error.refusals)


def _fitting(refusal: Refusal, experiment: Experiment, runs: Callable[[Experiment], bool]) -> tuple[Alternative, ...]:
    """Returns one more alternative of a key than a message names, at most."""
    found: list[Alternative] = []
    for each in refusal.instead:
        group = each.key.partition(".")[0]
        if group not in BY_NAME:  # a plain key, as `compile`
            found.append(each)
            continue
        if sum(other.key == each.key for other in found) > MOST_NAMED:
            continue
        choice = in_place_of(experiment.choice(group), each)
        if runs(experiment.model_copy(update={group: choice})):
            found.append(each)
    return tuple(found) or refusal.instead


def nearest_first(group: str, chosen: str) -> list[str]:
    """Returns the other choices of a group: variants of the chosen one first, then the usual one."""
    usual = BY_NAME[group].usual or {"strategy": "data_parallel", "sync": "bsp"}[group]
    names = sorted({usual, *(file.stem for file in (CONF / group).glob("*.yaml"))} - {chosen})
    stem = chosen.partition("_")[0]
    return sorted(names, key=lambda name: (name.partition("_")[0] != stem, name != usual))
