"""An optimizer that steps on pieces of the parameters, and its state as if it stepped on them whole.

What is saved is the whole state, at replica 0, in the unsharded optimizer's own layout: a run goes on from it with
another number of replicas, or unsharded, and the other way round.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from ..strategies.core.state import State, recv_state, to_messages


@dataclass(frozen=True)
class Piece:
    """Entries `start` to `stop` of parameter `index`, which this replica owns: a view of the weights and one of g_r."""

    index: int
    start: int
    stop: int
    weight: nn.Parameter
    gradient: Tensor


class ShardedOptimizer:
    """Takes over an optimizer: its `param_groups` name this replica's pieces, and its state is of them alone."""

    def __init__(
        self, optimizer: Optimizer, parameters: list[nn.Parameter], pieces: Mapping[int, Piece], comm: Comm
    ) -> None:
        """`pieces` by the index of their parameter. State that `optimizer` has already is cut to them."""
        self._optimizer, self._params, self._comm = optimizer, parameters, comm
        index = {parameter: i for i, parameter in enumerate(self._params)}
        whole = optimizer.state_dict()  # some keep state from the start
        number = 0
        self._groups: list[list[int]] = []  # the whole one's numbers, by group
        self._numbered: list[tuple[int, Piece]] = []  # the pieces, in the order in which the optimizer has them
        for group in optimizer.param_groups:
            numbers = range(number, number + len(group["params"]))
            number += len(numbers)
            owned = [(n, index[p]) for n, p in zip(numbers, group["params"], strict=True) if p in index]
            own = [(n, pieces[i]) for n, i in owned if i in pieces]
            self._groups.append(list(numbers))
            self._numbered += own
            group["params"] = [piece.weight for _, piece in own]
        optimizer.state.clear()
        if whole["state"]:
            self.load_state_dict({"optimizer": whole})

    def state_dict(self) -> State:
        """Returns the whole state, as an unsharded optimizer has it, on replica 0; {} elsewhere. All call it."""
        kept = [
            {"number": n, "index": p.index, "start": p.start, "stop": p.stop, "state": self._optimizer.state[p.weight]}
            for n, p in self._numbered
            if p.weight in self._optimizer.state
        ]
        if self._comm.rank != 0:
            for message in to_messages({"kept": kept}):
                self._comm.send(message, 0)
            return {}
        for replica in range(1, self._comm.size):
            kept += recv_state(replica, self._comm)["kept"]
        state: dict[int, dict[str, Any]] = defaultdict(dict)
        for piece in sorted(kept, key=lambda piece: piece["number"]):
            self._join(state[piece["number"]], piece)
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": numbers}
            for group, numbers in zip(self._optimizer.param_groups, self._groups, strict=True)
        ]
        return {"optimizer": {"state": dict(state), "param_groups": groups}}

    def _join(self, whole: dict[str, Any], piece: dict[str, Any]) -> None:
        """Add a piece's state to its parameter's."""
        parameter, start, stop = self._params[piece["index"]], piece["start"], piece["stop"]
        for key, value in piece["state"].items():
            if parameter.dim() > 0 and isinstance(value, Tensor) and value.shape == (stop - start,):
                if key not in whole:
                    whole[key] = torch.zeros(parameter.shape, dtype=value.dtype)
                whole[key].view(-1)[start:stop] = value
            else:
                whole.setdefault(key, value)  # a count of steps: all pieces have the same

    def load_state_dict(self, state: State) -> None:
        """Restores a state of `state_dict`, or of the unsharded optimizer. All workers call it.

        Raises `ValueError` as torch does.
        """
        whole = state["optimizer"]
        if [len(group["params"]) for group in whole["param_groups"]] != [len(numbers) for numbers in self._groups]:
            raise ValueError("the saved optimizer state is of other parameters")
        mine = {k: self._cut(whole["state"][n], p) for k, (n, p) in enumerate(self._numbered) if n in whole["state"]}
        groups, k = [], 0
        for group, own in zip(whole["param_groups"], self._optimizer.param_groups, strict=True):
            groups.append({**group, "params": list(range(k, k + len(own["params"])))})
            k += len(own["params"])
        self._optimizer.load_state_dict({"state": mine, "param_groups": groups})

    def _cut(self, whole: dict[str, Any], piece: Piece) -> dict[str, Any]:
        """The piece's part of its parameter's state, in memory of its own."""
        parameter = self._params[piece.index]
        found: dict[str, Any] = {}
        for key, value in whole.items():
            if parameter.dim() > 0 and isinstance(value, Tensor) and value.shape == parameter.shape:
                found[key] = value.reshape(-1)[piece.start : piece.stop].clone()
            else:
                found[key] = value.clone() if isinstance(value, Tensor) else value
        return found
