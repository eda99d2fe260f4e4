"""Lists the pairs of a strategy and a sync mode, by the same answer that checks a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...strategies import Strategy, Sync
from ..config.experiment import Choice, shipped
from ..config.targets import base_of, build
from . import injected
from .compatibility import Selection, Unmet, nearest_first, reasons_of, unmet
from .feature import Injected


@dataclass(frozen=True)
class Pair:
    """A strategy with a sync mode, as their defaults are.

    Args:
        meaning: of an accepted pair; else why it is refused.
        takes: by group, the choices other than the usual one that go with an accepted pair.
    """

    strategy: str
    sync: str
    accepted: bool
    meaning: str
    takes: dict[str, list[str]]


class _Builder:
    """Builds each choice of a strategy or a sync mode once with each choice of a given group."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._usual = {group.name: shipped(group.name, str(group.usual)) for group in injected.injected_groups()}
        self._given = injected.usual()
        self._made: dict[tuple[str, str, str, str], Any] = {}
        self._others = {
            group: {
                name: build(group, shipped(group, name), base_of(group), (), {"seed": 0})
                for name in nearest_first(group, str(BY_NAME[group].usual))
            }
            for group in self._usual
        }

    def selection(self, strategy: Choice, sync: Choice, group: str = "", name: str = "") -> Selection:
        """Returns the pair, with this choice of a given group. Raises `ConfigError`."""
        made, choices = dict(self._given), dict(self._usual)
        if group:
            made[group], choices[group] = self._others[group][name], shipped(group, name)
        objects = made | {
            kind: self._built(kind, choice, group, name, made)
            for kind, choice in (("strategy", strategy), ("sync", sync))
        }
        return Selection({**choices, "strategy": strategy, "sync": sync}, objects, self._allowed)

    def _built(self, kind: str, choice: Choice, group: str, name: str, made: Injected) -> Any:
        key = kind, choice.name, group, name
        if key not in self._made:
            try:
                self._made[key] = build(kind, choice, injected.BASES[kind], self._allowed, made)
            except ConfigError as error:
                self._made[key] = error
        if isinstance(self._made[key], ConfigError):
            raise self._made[key]
        return self._made[key]

    def takes(self, pair: Selection) -> dict[str, list[str]]:
        """Returns the other choices that an accepted pair takes, by group."""
        found: dict[str, list[str]] = {}
        for group in pair.used:
            for name in sorted(self._others[group]):
                try:
                    if not any(unmet(self.selection(pair.choices["strategy"], pair.choices["sync"], group, name))):
                        found.setdefault(group, []).append(name)
                except ConfigError:
                    continue
        return {group: found[group] for group in self._usual if group in found}


def pairs(strategies: Sequence[Choice], modes: Sequence[Choice], allowed: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Yields each strategy with each sync mode, as their defaults are."""
    builder = _Builder(allowed)
    for strategy in strategies:
        for mode in modes:
            selection = builder.selection(strategy, mode)
            if found := list(unmet(selection)):
                why = "; ".join(f"{key}: {'; '.join(reasons)}" for key, reasons in _told(selection, found))
                yield Pair(strategy.name, mode.name, False, why, {})
            else:
                meaning = _meaning(selection.strategy, selection.sync)
                yield Pair(strategy.name, mode.name, True, meaning, builder.takes(selection))


def _meaning(strategy: Strategy, sync: Sync) -> str:
    if strategy.traits.max_replicas == 1:
        return "one replica, which has nobody to agree with"
    if strategy.own_sync() is not None:
        return f"the strategy {strategy.traits.owns_update}, synchronously"
    if strategy.parts == 1:
        return "replicas of one worker each agree as the sync mode says"
    servers = ", through servers of its own" if sync.servers else ""
    return sync.traits.over_parts or f"each stage agrees with the same stage of the other replicas{servers}"


def _told(selection: Selection, found: Sequence[Unmet]) -> Iterator[tuple[str, list[str]]]:
    """Yields each choice that needs what others lack, with the reasons."""
    for key in dict.fromkeys(each.need.key or each.group for each in found):
        members = [each for each in found if (each.need.key or each.group) == key]
        yield selection.named(key), list(reasons_of(selection, members))
