"""The order in which an optimizer numbers its parameters, by their names: a script may take it from sets, whose order
differs between processes.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..conf.errors import ConfigError
from ..strategies import State

WAY_OUT = "Give it all of its groups of parameters before wrap."


class ParameterOrder:
    """The names of an optimizer's parameters, group by group; "" for a parameter that the model lacks.

    `stepped`: the parameters themselves, in that order.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Takes the optimizer as the script made it: a sync mode may put shards in the place of parameters."""
        self._known = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimizer, self._groups = optimizer, self._since(optimizer, 0)
        self.stepped: list[nn.Parameter] = [each for group in optimizer.param_groups for each in group["params"]]

    def names(self) -> list[list[str]]:
        """Returns the names in each group, those of groups that the script has added since at the end."""
        return [*self._groups, *self._since(self._optimizer, len(self._groups))]

    def _since(self, optimizer: Optimizer, first: int) -> list[list[str]]:
        groups = optimizer.param_groups[first:]
        return [[self._known.get(id(each), "") for each in group["params"]] for group in groups]

    def renumbered(self, kept: State, saved: Sequence[Sequence[str]] | None) -> State:
        """Returns the optimizer's state `kept` as this optimizer numbers its parameters.

        Args:
            saved: The names in the order of `kept`; None: an earlier version saved none, and the order is the same.

        Raises:
            ConfigError: A group has other parameters, or the state is not of single parameters.
        """
        if saved is None:
            self._check_shapes(kept["state"])
            return kept
        if len(saved) != len(self._groups):
            return kept  # torch refuses it
        for i, (theirs, mine) in enumerate(zip(saved, self._groups, strict=True)):
            if other := sorted({*theirs} ^ {*mine}):
                raise ConfigError(
                    f"optimizer: group {i} is another one than the checkpoint's: {', '.join(other[:5])} "
                    f"{'is' if len(other) == 1 else 'are'} in one of them alone. {WAY_OUT}"
                )
        if [*saved] == self._groups or [*map(len, saved)] != [*map(len, self._groups)]:
            return kept
        before = [(i, *each) for i, group in enumerate(saved) for each in _counted(group)]
        now = [(i, *each) for i, group in enumerate(self._groups) for each in _counted(group)]
        places = {each: number for number, each in enumerate(now)}
        if kept["state"].keys() == {0} and len(now) > 1:
            raise ConfigError(
                "optimizer: keeps one state of all parameters, and has them in another order than at the checkpoint. "
                "Give it lists of parameters, which keep their order; sets have another one in each process."
            )
        return {**kept, "state": {places[before[number]]: its for number, its in kept["state"].items()}}

    def _check_shapes(self, state: dict[int, dict[str, Any]]) -> None:
        """Raises `ConfigError` where parameters have the shapes of what is kept in another order."""
        for key in {key for its in state.values() for key in its}:
            of_key = {n: its[key].shape for n, its in state.items() if isinstance(its.get(key), Tensor)}
            theirs, mine = [*of_key.values()], [self.stepped[n].shape for n in of_key if n < len(self.stepped)]
            if theirs != mine and sorted(theirs) == sorted(mine):
                raise ConfigError(
                    "optimizer: has its parameters in another order than at the checkpoint, and an earlier version "
                    f"saved {key} without their names. Give it lists of parameters in the order of then."
                )


def _counted(names: Sequence[str]) -> list[tuple[str, int]]:
    """Returns each name with the number of equal names before it."""
    return [(name, names[:i].count(name) if name == "" else 0) for i, name in enumerate(names)]
