"""Objects that a sync mode or a strategy is given: the choices of groups such as `compress`.

The choice of each such group is built anew for each worker. A class that has a use for it has a constructor parameter
of the group's name; where neither the sync mode nor the strategy has one, only the group's usual choice is accepted.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..conf import groups
from ..conf.groups import Group
from ..strategies import LayoutError, Strategy, Sync
from ..strategies.exchange.compress import Compressor
from ..strategies.precision import Precision
from .errors import ConfigError
from .experiment import CONF, Choice, Experiment, shipped
from .fabrics import fabric_of
from .parts import Given
from .refusals import refuse
from .targets import base_of, build, load_class

_BASES: dict[str, type[Sync | Strategy]] = {"sync": Sync, "strategy": Strategy}  # who is given them
MOST_TOLD = 6  # choices in a refusal


def make(experiment: Experiment, allowed: tuple[str, ...]) -> Given:
    """For one worker. Raises `ConfigError`."""
    fabric = fabric_of(experiment)
    network = fabric.network(experiment.hardware)
    engines = {"seed": experiment.seed, "network": network, "in_memory": fabric.modelled}
    made: Given = {
        group.name: build(group.name, experiment.choice(group.name), base_of(group.name), allowed, engines)
        for group in _groups()
    }
    # the engine has a use for it with any strategy; one whose library has its own way to it is given it, too
    return {**made, "precision": build("precision", experiment.choice("precision"), Precision, allowed, engines)}


def usual() -> Given:
    """As where nothing else is chosen."""
    return {group.name: _built(group.name, str(group.usual)) for group in _groups()}


def taken(*classes: type) -> list[str]:
    """The groups that one of the classes has a use for."""
    parameters = {name for cls in classes for name in inspect.signature(cls).parameters}
    return [group.name for group in _groups() if group.name in parameters]


def of_kept(of_groups: Given) -> bool:
    """Whether what travels is what pruning has kept alone."""
    compress = of_groups["compress"]
    assert isinstance(compress, Compressor)
    return compress.of_kept


def of_kept_alone() -> set[str]:
    """Of our own choices of compress, those that send what pruning has kept alone."""
    names = [file.stem for file in (CONF / "compress").glob("*.yaml")]
    return {name for name in names if of_kept({"compress": _built("compress", name)})}


def _built(group: str, name: str) -> object:
    return build(group, shipped(group, name), base_of(group), (), {"seed": 0})


def check_taken(
    experiment: Experiment, of_groups: Given, strategy: Strategy, sync: Sync | None, elsewhere: Sequence[str] = ()
) -> None:
    """Refuse the choices that neither has a use for. `sync`: None where the strategy owns its update. `elsewhere`:
    groups whose choice the engine itself has a use for.
    """
    useful = {*taken(type(strategy), *([type(sync)] if sync is not None else [])), *elsewhere}
    left = [group for group in _groups() if group.name not in useful and not _is_usual(experiment, group)]
    refuse(_untaken(experiment, group, of_groups, strategy, sync) for group in left)


def _is_usual(experiment: Experiment, group: Group) -> bool:
    return experiment.choice(group.name) == shipped(group.name, str(group.usual))


def _untaken(experiment: Experiment, group: Group, of_groups: Given, strategy: Strategy, sync: Sync | None) -> str:
    mode, name = experiment.sync.name, experiment.strategy.name
    who, where = f"sync={mode}", ""
    if sync is None:
        who, where = f"strategy={name} {strategy.owns_update} and", "with strategy=data_parallel, "
    return (
        f"{group.name}{_shown(experiment.choice(group.name), group)}: {who} has no use for it; {where}"
        f"{_takers(experiment, group, of_groups, None if sync is None else strategy)}; "
        f"{group.name}={group.usual} goes with all"
    )


def named(text: str, experiment: Experiment) -> str:
    """`compress, sync: ...` with the choices: `compress=topk, sync=bsp: ...`. So is a class's own name of itself
    (`sync=local_sgd: ...`), which may have been chosen by another one (`diloco`).
    """
    head, colon, rest = text.partition(":")
    words = [word.partition("=")[0] for word in head.split(", ")]
    if not colon or not {*words} <= {*_BASES, *(group.name for group in _groups())}:
        return text
    return ", ".join(f"{word}={experiment.choice(word).name}" for word in words) + colon + rest


@contextmanager
def naming(experiment: Experiment) -> Iterator[None]:
    """Objects do not know by which name they were chosen: refusals are given it here."""
    try:
        yield
    except LayoutError as error:
        raise LayoutError(named(str(error), experiment)) from None


def _shown(choice: Choice, group: Group) -> str:
    """As it was typed: the usual choice may have been given another class."""
    return f"={choice.name}" if choice.name != group.usual else f"._target_={choice.target}"


def _takers(experiment: Experiment, group: Group, of_groups: Given, strategy: Strategy | None) -> str:
    """Which of our own choices take it as it is, in place of the one that is chosen: asked in a refusal alone, since it
    imports them all. `strategy`: None where it owns its update.
    """
    choice = experiment.choice(group.name)
    prunes = group.name == "compress" and choice.name in of_kept_alone()  # where weights may be pruned alone

    def those(strategy_name: str) -> list[str]:
        return [
            f"{kind}={file.stem}"
            for kind in _BASES
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
    stems = {f"{kind}={experiment.choice(kind).name.partition('_')[0]}" for kind in _BASES}
    first = sorted(names, key=lambda name: name.partition("_")[0] not in stems)[:MOST_TOLD]
    return f"{', '.join(first)} and {len(names) - MOST_TOLD} more (paceline list pairs shows all)"


def _goes(kind: str, name: str, strategy_name: str, sync_name: str, with_it: Given) -> bool:
    """Whether `kind`=`name` takes it, beside the strategy, or the sync mode, of this name."""
    from .pairs import check_pair  # which reads this module

    named = {"strategy": strategy_name, "sync": sync_name} | {kind: name}
    if any(not (CONF / each / f"{named[each]}.yaml").is_file() for each in named):
        return False
    try:
        strategy = build("strategy", shipped("strategy", named["strategy"]), Strategy, (), with_it)
        sync = build("sync", shipped("sync", named["sync"]), Sync, (), with_it)
        check_pair(named["strategy"], named["sync"], strategy, sync)
    except (ConfigError, LayoutError):
        return False
    return True


def _may_prune(kind: str, name: str) -> bool:
    made = build(kind, shipped(kind, name), _BASES[kind], (), usual())
    return isinstance(made, Sync) and made.may_begin_anew


def has_use_for(kind: str, choice: Choice, group: Group, allowed: tuple[str, ...] = ()) -> bool:
    with suppress(ConfigError):  # what cannot be imported here is no advice
        return group.name in taken(load_class(kind, choice.target, _BASES[kind], allowed))
    return False


def with_others(
    kind: str, choice: Choice, group: Group, allowed: tuple[str, ...] = ()
) -> Iterator[tuple[str, Sync | Strategy]]:
    """The group's own choices that it takes, but the usual one, and what it is with each. It has a use for them."""
    for other in _others(group):
        with suppress(ConfigError, LayoutError):
            made = _built(group.name, other)
            yield other, build(kind, choice, _BASES[kind], allowed, {**usual(), group.name: made})


def _others(group: Group) -> list[str]:
    """Of the group's own choices, all but the usual one."""
    return sorted(file.stem for file in (CONF / group.name).glob("*.yaml") if file.stem != group.usual)


def _groups() -> list[Group]:
    return [group for group in groups.GROUPS if group.given]
