"""An optimizer that steps on pieces of the parameters, and its state as if it stepped on them whole.

What is saved is the whole state, in the unsharded optimizer's own layout: a run goes on from it with another number of
replicas, or unsharded, and the other way round. Replica 0 gathers one tensor after the other as it writes them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from ..strategies.core.state import ShardedTensor, State, own_entries, read_all, recv_state, to_messages


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
        self._numbers: dict[int, int] = {}  # the whole one's, by the index of the parameter: replicas may differ in it
        self._numbered: list[tuple[int, Piece]] = []  # the pieces, in the order in which the optimizer has them
        for group in optimizer.param_groups:
            numbers = range(number, number + len(group["params"]))
            number += len(numbers)
            owned = [(n, index[p]) for n, p in zip(numbers, group["params"], strict=True) if p in index]
            own = [(n, pieces[i]) for n, i in owned if i in pieces]
            self._groups.append(list(numbers))
            self._numbers |= {i: n for n, i in owned}
            self._numbered += own
            group["params"] = [piece.weight for _, piece in own]
        optimizer.state.clear()
        if whole["state"]:
            self.load_state_dict({"optimizer": whole})

    def state_dict(self) -> State:
        """Returns the state as an unsharded optimizer has it; what replicas hold in pieces as `ShardedTensor`.

        All call it. Replicas other than 0 return only what they have a piece of.
        """
        mine = [self._piece_state(piece) for _, piece in self._numbered if piece.weight in self._optimizer.state]
        kept = [(self._comm.rank, each) for each in mine]
        if self._comm.rank != 0:
            for message in to_messages({"kept": mine}):
                self._comm.send(message, 0)
        else:
            for replica in range(1, self._comm.size):
                kept += ((replica, each) for each in recv_state(replica, self._comm)["kept"])
        state: dict[int, dict[str, Any]] = defaultdict(dict)
        holders: dict[tuple[int, str], list[tuple[int, State]]] = defaultdict(list)
        for replica, piece in sorted(kept, key=lambda each: each[1]["index"]):
            index, number = piece["index"], self._numbers[piece["index"]]
            parameter = self._params[index]
            for key, like in piece["cut"].items():
                holders[index, key].append((replica, piece))
                gather = partial(self._gather, index, key, holders[index, key])
                state[number][key] = ShardedTensor(tuple(parameter.shape), like.dtype, gather)
            state[number] |= piece["whole"]  # a count of steps: all pieces have the same
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": numbers}
            for group, numbers in zip(self._optimizer.param_groups, self._groups, strict=True)
        ]
        own = own_entries(self._optimizer.state_dict())
        return {"optimizer": {**own, "state": dict(state), "param_groups": groups}}

    def _piece_state(self, piece: Piece) -> State:
        """Returns what is kept for a piece: `whole` for all of its parameter; of what is cut no entry, but its type."""
        dim, shape, kept = self._params[piece.index].dim(), piece.weight.shape, self._optimizer.state[piece.weight]
        cut = {key for key, value in kept.items() if dim > 0 and isinstance(value, Tensor) and value.shape == shape}
        return {
            "index": piece.index,
            "start": piece.start,
            "stop": piece.stop,
            "cut": {key: value[:0] for key, value in kept.items() if key in cut},
            "whole": {key: value for key, value in kept.items() if key not in cut},
        }

    def _gather(self, index: int, key: str, holders: Sequence[tuple[int, State]]) -> Tensor | None:
        """Returns the whole tensor that is kept as `key` for parameter `index`, on replica 0. All of `holders`, a
        replica and its piece each, call it.
        """
        own = {piece.index: piece for _, piece in self._numbered}
        if self._comm.rank != 0:
            self._comm.send(self._optimizer.state[own[index].weight][key].contiguous(), 0)
            return None
        parameter = self._params[index]
        whole = torch.zeros(parameter.shape, dtype=holders[0][1]["cut"][key].dtype)
        for replica, piece in holders:
            if replica == 0:
                received = self._optimizer.state[own[index].weight][key]
            else:
                size = piece["stop"] - piece["start"]
                received = torch.empty(size, dtype=whole.dtype, device=parameter.device)
                self._comm.recv(received, replica)
            whole.view(-1)[piece["start"] : piece["stop"]] = received.cpu()
        return whole

    def load_state_dict(self, state: State) -> None:
        """Restores a state of `state_dict`, or of the unsharded optimizer. All workers call it.

        Reads tensors in a file one after the other. Raises `ValueError` as torch does.
        """
        whole = state["optimizer"]
        if [len(group["params"]) for group in whole["param_groups"]] != [len(numbers) for numbers in self._groups]:
            raise ValueError("the saved optimizer state is of other parameters")
        mine = {k: self._cut(whole["state"][n], p) for k, (n, p) in enumerate(self._numbered) if n in whole["state"]}
        groups, k = [], 0
        for group, own in zip(whole["param_groups"], self._optimizer.param_groups, strict=True):
            groups.append({**group, "params": list(range(k, k + len(own["params"])))})
            k += len(own["params"])
        self._optimizer.load_state_dict({**whole, "state": mine, "param_groups": groups})

    def _cut(self, whole: dict[str, Any], piece: Piece) -> dict[str, Any]:
        """The piece's part of its parameter's state, in memory of its own."""
        parameter = self._params[piece.index]
        found: dict[str, Any] = {}
        for key, kept in whole.items():
            value = read_all(kept)
            if parameter.dim() > 0 and isinstance(value, Tensor) and value.shape == parameter.shape:
                found[key] = value.reshape(-1)[piece.start : piece.stop].clone()
            else:
                found[key] = value.clone() if isinstance(value, Tensor) else value
        return found
