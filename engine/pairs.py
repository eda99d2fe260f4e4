"""Which sync modes a strategy takes, and what the two together mean: the rules that a run is checked by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..strategies import Strategy, Sync
from . import given
from .errors import ConfigError
from .experiment import Choice
from .targets import build

BSP_ONLY = "bsp"  # what a strategy that owns its update takes


@dataclass(frozen=True)
class Pair:
    strategy: str
    sync: str
    accepted: bool
    meaning: str  # of what is accepted; else why it is not
    takes: list[str]  # groups of which it has a use for other choices than the usual ones


def check_pair(strategy_name: str, sync_name: str, strategy: Strategy, sync: Sync) -> None:
    """Raises `ConfigError`."""
    if strategy.own_sync() is not None and sync_name != BSP_ONLY:
        raise ConfigError(
            f"sync={sync_name}: strategy={strategy_name} {strategy.owns_update} and takes sync=bsp only; "
            "strategy=data_parallel takes any (which goes with which: paceline list pairs)"
        )
    if sync.max_parts is not None and strategy.parts > sync.max_parts:
        raise ConfigError(
            f"sync={sync_name}: takes replicas of {_workers(sync.max_parts)}, and strategy={strategy_name} cuts one "
            f"over {_workers(strategy.parts)}; strategy=data_parallel goes with it, and sync=bsp with this strategy"
        )


def pairs(strategies: Sequence[Choice], modes: Sequence[Choice], allowed: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Each strategy with each sync mode, as their defaults are."""
    usual = given.usual()
    for chosen in strategies:
        strategy = build("strategy", chosen, Strategy, allowed, usual)
        for mode in modes:
            sync = build("sync", mode, Sync, allowed, usual)
            try:
                check_pair(chosen.name, mode.name, strategy, sync)
            except ConfigError as error:
                yield Pair(chosen.name, mode.name, False, str(error), [])
            else:
                classes = [type(strategy)] if strategy.own_sync() is not None else [type(strategy), type(sync)]
                yield Pair(chosen.name, mode.name, True, _meaning(strategy, sync), given.taken(*classes))


def _meaning(strategy: Strategy, sync: Sync) -> str:
    if strategy.max_replicas == 1:
        return "one replica, which has nobody to agree with"
    if strategy.own_sync() is not None:
        return f"the strategy {strategy.owns_update}, synchronously"
    if strategy.parts == 1:
        return "replicas of one worker each agree as the sync mode says"
    servers = ", through servers of its own" if sync.servers else ""
    return sync.over_parts or f"each stage agrees with the same stage of the other replicas{servers}"


def _workers(number: int) -> str:
    return "one worker" if number == 1 else f"{number} workers"
