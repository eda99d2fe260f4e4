"""Which sync modes a strategy takes, and what the two together mean: the rules that a run is checked by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...strategies import Strategy, Sync
from ..config.experiment import Choice
from ..config.targets import build
from . import given

BSP_ONLY = "bsp"  # what a strategy that owns its update takes


@dataclass(frozen=True)
class Pair:
    strategy: str
    sync: str
    accepted: bool
    meaning: str  # of what is accepted; else why it is not
    takes: dict[str, list[str]]  # by group, the other choices than the usual one that it takes, where there are any


def check_pair(strategy_name: str, sync_name: str, strategy: Strategy, sync: Sync) -> None:
    """Raises `ConfigError`."""
    if strategy.own_sync() is not None and sync_name != BSP_ONLY:
        raise ConfigError(
            f"sync={sync_name}: strategy={strategy_name} {strategy.traits.owns_update} and takes sync=bsp only; "
            "strategy=data_parallel takes any (which goes with which: paceline list pairs)"
        )
    if strategy.traits.across_replicas and (not sync.traits.synchronous or sync.traits.survives):
        why = (
            "goes on without replicas that have died"
            if sync.traits.synchronous
            else "lets replicas take steps at paces of their own"
        )
        across = strategy.traits.across_replicas
        raise ConfigError(
            f"sync={sync_name}: {why}, and {across} waits for all of them in every step; choose a mode in which "
            f"replicas step together, such as sync=bsp, or leave out {across}"
        )
    if sync.privacy is not None and sync.privacy.of == "sample" and not strategy.traits.per_sample:
        raise ConfigError(
            f"privacy, strategy: takes the gradient of each sample by itself, which strategy={strategy_name} does not "
            "give; choose strategy=data_parallel or single, or privacy=none"
        )
    traits = sync.traits
    if traits.whole_rows and strategy.parts > 1:
        others = "aggregate=mean, median, trimmed_mean or majority_vote, with aggregate.before=none"
        if traits.whole_rows == "attack":
            others = "any but attack=min_max and min_sum"
        raise ConfigError(
            f"{traits.whole_rows}: looks at each replica's gradient whole, and strategy={strategy_name} cuts a replica "
            f"over {_workers(strategy.parts)}, of which each has a piece; choose strategy=data_parallel, or one that "
            f"looks at each entry by itself: {others}"
        )
    if traits.max_parts is not None and strategy.parts > traits.max_parts:
        raise ConfigError(
            f"sync={sync_name}: takes replicas of {_workers(traits.max_parts)}, and strategy={strategy_name} cuts one "
            f"over {_workers(strategy.parts)}; strategy=data_parallel goes with it, and sync=bsp with this strategy"
        )
    if strategy.shares and not traits.synchronous:
        raise ConfigError(
            f"sync={sync_name}: updates each part at a time of its own, and strategy={strategy_name} holds some "
            "parameters whole on several workers of a replica, which would drift apart; choose a mode in which "
            "replicas step together, such as sync=bsp or sync=local_sgd"
        )
    if strategy.shares and not type(sync).traits.entrywise:
        raise ConfigError(
            f"sync={sync_name}: what it makes of a weight depends on what else a worker holds, and "
            f"strategy={strategy_name} holds some parameters whole on several workers of a replica, which would drift "
            "apart; choose another mode in which replicas step together, such as sync=bsp or sync=local_sgd"
        )
    if strategy.shares and not traits.entrywise:
        raise ConfigError(
            f"compress: chooses entries by what else a worker sends, and strategy={strategy_name} holds some "
            "parameters whole on several workers of a replica, which would drift apart; choose compress=none, fp16, "
            "bf16 or threshold"
        )


def pairs(strategies: Sequence[Choice], modes: Sequence[Choice], allowed: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Each strategy with each sync mode, as their defaults are."""
    usual = given.usual()

    @cache
    def others(kind: str, choice: str, group: str) -> list[tuple[str, Sync | Strategy]]:
        asked = kind, named[kind, choice], BY_NAME[group], allowed
        return list(given.with_others(*asked)) if given.has_use_for(*asked) else []

    whole_only = given.of_kept_alone()  # what goes where weights may be pruned
    named = {(kind, choice.name): choice for kind, its in (("strategy", strategies), ("sync", modes)) for choice in its}
    for chosen in strategies:
        strategy = build("strategy", chosen, Strategy, allowed, usual)
        for mode in modes:
            sync = build("sync", mode, Sync, allowed, usual)
            try:
                check_pair(chosen.name, mode.name, strategy, sync)
            except ConfigError as error:
                yield Pair(chosen.name, mode.name, False, str(error), {})
                continue
            takes: dict[str, list[str]] = {}
            for group in usual:
                of_mode = others("sync", mode.name, group) if strategy.own_sync() is None else []
                found = [*others("strategy", chosen.name, group), *of_mode]
                if not sync.traits.may_begin_anew or strategy.axes.get("tensor", 1) > 1:
                    found = [(name, made) for name, made in found if group != "compress" or name not in whole_only]
                names = [name for name, made in found if _goes(chosen.name, mode.name, strategy, made)]
                if names:
                    takes[group] = list(dict.fromkeys(names))
            yield Pair(chosen.name, mode.name, True, _meaning(strategy, sync), takes)


def _goes(strategy_name: str, sync_name: str, strategy: Strategy, made: Sync | Strategy) -> bool:
    """Whether the strategy takes the sync mode as it is with another choice of a group."""
    try:
        if isinstance(made, Sync):
            check_pair(strategy_name, sync_name, strategy, made)
    except ConfigError:
        return False
    return True


def _meaning(strategy: Strategy, sync: Sync) -> str:
    if strategy.traits.max_replicas == 1:
        return "one replica, which has nobody to agree with"
    if strategy.own_sync() is not None:
        return f"the strategy {strategy.traits.owns_update}, synchronously"
    if strategy.parts == 1:
        return "replicas of one worker each agree as the sync mode says"
    servers = ", through servers of its own" if sync.servers else ""
    return sync.traits.over_parts or f"each stage agrees with the same stage of the other replicas{servers}"


def _workers(number: int) -> str:
    return "one worker" if number == 1 else f"{number} workers"
