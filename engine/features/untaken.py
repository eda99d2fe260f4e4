"""Refuses choices that neither the strategy nor the sync mode has a use for, and says who takes them."""

from collections.abc import Sequence

from ...conf.errors import ConfigError
from ...conf.groups import ConfigGroup
from ...strategies import Strategy, Sync
from ..base.refusals import refuse
from ..config.experiment import CONF, Choice, Experiment, shipped
from ..config.targets import build
from .feature import Given
from .given import BASES, given_groups, has_use_for, of_kept_alone, taken, usual
from .pairs import check_pair

MOST_TOLD = 6  # choices in a refusal


def check_taken(
    experiment: Experiment, of_groups: Given, strategy: Strategy, sync: Sync | None, elsewhere: Sequence[str] = ()
) -> None:
    """Refuse the choices that neither has a use for. `sync`: None where the strategy owns its update. `elsewhere`:
    groups whose choice the engine itself has a use for.
    """
    useful = {*taken(type(strategy), *([type(sync)] if sync is not None else [])), *elsewhere}
    left = [group for group in given_groups() if group.name not in useful and not _is_usual(experiment, group)]
    refuse(_untaken(experiment, group, of_groups, strategy, sync) for group in left)


def _is_usual(experiment: Experiment, group: ConfigGroup) -> bool:
    return experiment.choice(group.name) == shipped(group.name, str(group.usual))


def _untaken(
    experiment: Experiment, group: ConfigGroup, of_groups: Given, strategy: Strategy, sync: Sync | None
) -> str:
    mode, name = experiment.sync.name, experiment.strategy.name
    who, where = f"sync={mode}", ""
    if sync is None:
        who, where = f"strategy={name} {strategy.traits.owns_update} and", "with strategy=data_parallel, "
    return (
        f"{group.name}{_shown(experiment.choice(group.name), group)}: {who} has no use for it; {where}"
        f"{_takers(experiment, group, of_groups, None if sync is None else strategy)}; "
        f"{group.name}={group.usual} goes with all"
    )


def _shown(choice: Choice, group: ConfigGroup) -> str:
    """As it was typed: the usual choice may have been given another class."""
    return f"={choice.name}" if choice.name != group.usual else f"._target_={choice.target}"


def _takers(experiment: Experiment, group: ConfigGroup, of_groups: Given, strategy: Strategy | None) -> str:
    """Which of our own choices take it as it is, in place of the one that is chosen: asked in a refusal alone, since it
    imports them all. `strategy`: None where it owns its update.
    """
    choice = experiment.choice(group.name)
    prunes = group.name == "compress" and choice.name in of_kept_alone()  # where weights may be pruned alone

    def those(strategy_name: str) -> list[str]:
        return [
            f"{kind}={file.stem}"
            for kind in BASES
            for file in sorted((CONF / kind).glob("*.yaml"))
            if has_use_for(kind, shipped(kind, file.stem), group)
            and not (prunes and not _may_prune(kind, file.stem))
            and _goes(
                kind, file.stem, strategy_name, experiment.sync.name, {**usual(), group.name: of_groups[group.name]}
            )
        ]

    plain = "data_parallel"
    own = None if strategy is None else experiment.strategy.name
    if own is not None and (CONF / "strategy" / f"{own}.yaml").is_file() and (names := those(own)):
        return f"these take it: {_some(names, experiment)}"
    names = those(plain)
    if not names:
        return "none of paceline's own takes it"
    where = f"with strategy={plain}, " if own is not None and own != plain else ""
    return f"{where}these take it: {_some(names, experiment)}"


def _some(names: list[str], experiment: Experiment) -> str:
    """All of a few; of more those first that are variants of what is chosen, as easgd is of easgd_async."""
    if len(names) <= MOST_TOLD:
        return ", ".join(names)
    stems = {f"{kind}={experiment.choice(kind).name.partition('_')[0]}" for kind in BASES}
    first = sorted(names, key=lambda name: name.partition("_")[0] not in stems)[:MOST_TOLD]
    return f"{', '.join(first)} and {len(names) - MOST_TOLD} more (paceline list pairs shows all)"


def _goes(kind: str, name: str, strategy_name: str, sync_name: str, with_it: Given) -> bool:
    """Whether `kind`=`name` takes it, beside the strategy, or the sync mode, of this name."""
    named = {"strategy": strategy_name, "sync": sync_name} | {kind: name}
    if any(not (CONF / each / f"{named[each]}.yaml").is_file() for each in named):
        return False
    try:
        strategy = build("strategy", shipped("strategy", named["strategy"]), Strategy, (), with_it)
        sync = build("sync", shipped("sync", named["sync"]), Sync, (), with_it)
        check_pair(named["strategy"], named["sync"], strategy, sync)
    except ConfigError:
        return False
    return True


def _may_prune(kind: str, name: str) -> bool:
    made = build(kind, shipped(kind, name), BASES[kind], (), usual())
    return isinstance(made, Sync) and made.traits.may_begin_anew
