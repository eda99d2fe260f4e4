"""Objects that a sync mode or a strategy is given: the choices of groups such as `compress`.

The choice of each such group is built anew for each worker. A class that has a use for it has a constructor parameter
of the group's name; where neither the sync mode nor the strategy has one, only the group's usual choice is accepted.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...conf import groups
from ...conf.errors import ConfigError
from ...conf.groups import ConfigGroup
from ...conf.notes import Note
from ...exchange.compress import Compressor
from ...strategies import Strategy, Sync
from ...strategies.core.protocols import Composite
from ...strategies.precision import Precision
from ..config.experiment import Experiment, shipped
from ..config.targets import base_of, build
from ..fabrics import fabric_of
from .feature import Injected

BASES: dict[str, type[Sync | Strategy]] = {"sync": Sync, "strategy": Strategy}  # who is given them


def make(experiment: Experiment, allowed: tuple[str, ...]) -> Injected:
    """Builds the chosen component of each group, for one worker. Raises `ConfigError`."""
    fabric = fabric_of(experiment)
    network = fabric.network(experiment.hardware)
    engines = {"seed": experiment.seed, "network": network, "in_memory": fabric.modelled}
    made: Injected = {
        group.name: build(group.name, experiment.choice(group.name), base_of(group.name), allowed, engines)
        for group in injected_groups()
    }
    # the engine has a use for it with any strategy; one whose library has its own way to it is given it, too
    return {**made, "precision": build("precision", experiment.choice("precision"), Precision, allowed, engines)}


def usual() -> Injected:
    """Returns the usual component of each group, as where nothing else is chosen."""
    return {group.name: _built(group.name, str(group.usual)) for group in injected_groups()}


def accepted(*those: object) -> list[str]:
    """The groups that one of these classes, or objects, has a use for."""
    parameters = {name for each in those for name in _parameters(each)}
    return [group.name for group in injected_groups() if group.name in parameters]


def _parameters(of: object) -> set[str]:
    """Returns the parameters of a class. A mode that is made of others takes what all of them take."""
    if isinstance(of, Composite):
        return set[str].intersection(*map(_parameters, of.modes.values()))
    return {*inspect.signature(of if isinstance(of, type) else type(of)).parameters}


def of_kept(of_groups: Injected) -> bool:
    """Returns whether messages hold only the entries that pruning has kept."""
    compress = of_groups["compress"]
    assert isinstance(compress, Compressor)
    return compress.traits.of_kept


def _built(group: str, name: str) -> object:
    return build(group, shipped(group, name), base_of(group), (), {"seed": 0})


def named(note: Note | str, experiment: Experiment) -> str:
    """Returns the text of a note, with the names of the choices that it is about."""
    return note if isinstance(note, str) else note.named(_names(note.about, experiment))


@contextmanager
def naming(experiment: Experiment) -> Iterator[None]:
    """Gives errors of objects the names under which these were chosen."""
    try:
        yield
    except ConfigError as error:
        if not error.about:
            raise
        raise error.named(_names(error.about, experiment)) from None


def _names(groups: Sequence[str], experiment: Experiment) -> dict[str, str]:
    return {group: experiment.choice(group).name for group in groups}


def injected_groups() -> list[ConfigGroup]:
    return [group for group in groups.GROUPS if group.injected]
