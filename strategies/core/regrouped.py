"""A replica's state as the parts of one layout saved it, read by the parts of another.

A part's file has its tensors by name, whole or as a piece along one dimension, and the state that the optimizer and
others keep for each tensor. A part of another layout reads only its own entries, slice by slice, from the files that
have them. Any other state must be the same on all parts. If it is not, it cannot be carried over.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .mesh import Mesh
from .placements import pieces_of, placements_of
from .state import LazyTensor, Named, State, own_entries, read_all, state_of

OTHER_SHAPE = "what is kept for {} has another shape than it, and cannot be cut"


@dataclass(frozen=True)
class Entries:
    """The entries of a tensor that a part has: `start` to `stop` of dimension `dim`."""

    dim: int
    start: int
    stop: int


def entries_of(parts: Sequence[nn.Module], mesh: Mesh, rank: int) -> dict[str, Entries | None]:
    """Returns the entries that the part `rank` has of each of its tensors; None if it has all of them."""
    mine, found = pieces_of(parts[rank], mesh, rank), dict[str, Entries | None]()
    sizes: dict[str, dict[int, int]] = {}  # of the pieces of a tensor, by their index
    for i, part in enumerate(parts):
        shapes, cut = state_of(part), placements_of(part)
        for name, piece in pieces_of(part, mesh, i).items():
            sizes.setdefault(name, {})[piece] = shapes[name].shape[cut[name].dim] if name in shapes else 0
    for name, tensor in state_of(parts[rank]).items():
        split, found[name] = placements_of(parts[rank]).get(name), None
        if split is not None:
            start = sum(size for piece, size in sizes[name].items() if piece < mine[name])
            found[name] = Entries(split.dim, start, start + tensor.shape[split.dim])
    return found


def order_of(module: nn.Module, optimizer: Optimizer) -> list[str]:
    """Returns the names of `module`'s parameters in the order in which its `optimizer` numbers them."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def is_recut(states: Sequence[State], modules: Sequence[nn.Module]) -> bool:
    """Returns whether the parts that saved `states` had other tensors than `modules`, as where a strategy cuts a model
    by the size of a batch.
    """
    return [state["parameters"].keys() for state in states] != [state_of(module).keys() for module in modules]


class SavedParts:
    """The state of all parts of a replica, by name."""

    def __init__(self, states: Sequence[State]) -> None:
        """`states`: the states of the parts, in the order of the parts, as `in_file` returns them."""
        self._states = states
        self._dims: dict[str, int] = {name: dim for state in states for name, dim in state.get("split", {}).items()}
        self._holders: dict[str, list[int]] = {}  # by tensor: the parts that together have it once
        seen: set[tuple[str, int | None]] = set()
        for i, state in enumerate(states):  # earlier versions saved no piece: each part had its own
            for name in state["parameters"]:
                piece = state.get("piece", {}).get(name, i) if name in state.get("split", {}) else None
                if (name, piece) not in seen:
                    self._holders.setdefault(name, []).append(i)
                    seen.add((name, piece))

    def parameters(self) -> dict[str, Tensor]:
        """Returns the tensors of the whole model."""
        return {name: read_all(self._parameter(name, None)) for name in self._holders}

    def shapes(self) -> dict[str, list[int]]:
        """Returns the shape of each of the whole model's tensors."""
        found: dict[str, list[int]] = {}
        for name, holders in self._holders.items():
            pieces = [list(self._states[i]["parameters"][name].shape) for i in holders]
            found[name] = pieces[0]
            if (dim := self._dims.get(name)) is not None:
                found[name][dim] = sum(piece[dim] for piece in pieces[1:]) + pieces[0][dim]
        return found

    def check(
        self, modules: Sequence[nn.Module], make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    ) -> None:
        """Raises `ValueError` for state that these parts cannot take over. Reads no tensor of a parameter."""
        self._merged("", self._rest(), {})
        kept = self._of_optimizers()
        for module in modules:
            optimizer = make_optimizer(module.parameters())
            self._groups(order_of(module, optimizer), optimizer)
            for name in placements_of(module).keys() & self._holders.keys():
                for i in self._holders[name]:
                    if _has_others(kept[i].get(name), self._states[i]["parameters"][name].shape):
                        raise ValueError(OTHER_SHAPE.format(name))

    def of_part(self, modules: Sequence[nn.Module], mesh: Mesh, rank: int, optimizer: Optimizer) -> State:
        """Returns the state of the part `rank` of `modules`, as `in_file` returns one. Raises `ValueError` for a state
        that cannot be carried over.

        `optimizer`: a new one of that part's parameters, which says how they are grouped and numbered.
        """
        wanted, order = entries_of(modules, mesh, rank), order_of(modules[rank], optimizer)
        kept, merged = self._named(self._of_optimizers(), wanted), self._merged("", self._rest(), wanted)
        state = {i: kept[name] for i, name in enumerate(order) if name in kept}
        merged["sync"]["optimizer"] |= {"state": state, "param_groups": self._groups(order, optimizer)}
        return {"parameters": {name: self._parameter(name, own) for name, own in wanted.items()}, **merged}

    def _of_optimizers(self) -> dict[int, Named]:
        """Returns the state of each part's optimizer by the names of parameters."""
        if any("order" not in state for state in self._states):
            raise ValueError("an earlier version saved the optimizer's state without the names of parameters")
        found = dict[int, Named]()
        for i, state in enumerate(self._states):
            order, kept = state["order"], state["sync"].get("optimizer", {"state": {}})["state"]
            common = kept.keys() == {0} and len(order) > 1 and not _has_entries(state["parameters"][order[0]], kept[0])
            if common or any(not isinstance(number, int) for number in kept):
                raise ValueError("the optimizer keeps state that is of no one parameter")
            found[i] = Named((order[number], its) for number, its in kept.items())
        return found

    def _groups(self, order: Sequence[str], optimizer: Optimizer) -> list[dict[str, Any]]:
        """Returns the groups of `optimizer`, whose parameters have the names `order`, with the values that were saved.
        Raises `ValueError` where parts had other values.
        """
        saved: dict[str, dict[str, Any]] = {}
        for state in self._states:
            for group in state["sync"].get("optimizer", {"param_groups": []})["param_groups"]:
                saved |= {state["order"][number]: group for number in group["params"]}
        groups = optimizer.state_dict()["param_groups"]
        for group in groups:
            theirs = [saved[name] for number in group["params"] if (name := order[int(number)]) in saved]
            for key in group.keys() - {"params"}:
                values = [read_all(each[key]) for each in {id(each): each for each in theirs}.values() if key in each]
                if any(not _alike(value, values[0]) for value in values):
                    raise ValueError(f"the optimizer has another {key} on each part")
                group[key] = values[0] if values else group[key]
        return groups

    def _rest(self) -> dict[int, State]:
        """Returns the state of each part without its tensors and the state that its optimizer keeps for them."""
        return {
            i: {
                "sync": {**state["sync"], "optimizer": own_entries(state["sync"].get("optimizer", {}))},
                **{key: each for key, each in state.items() if key not in _OWN},
            }
            for i, state in enumerate(self._states)
        }

    def _parameter(self, name: str, own: Entries | None) -> LazyTensor | Tensor:
        return self._cut(name, [self._states[i]["parameters"][name] for i in self._holders[name]], own)

    def _cut(self, name: str, pieces: Sequence[LazyTensor], own: Entries | None) -> LazyTensor | Tensor:
        """Returns the entries `own` of a tensor; None: all. `pieces`: the tensor's pieces, one of each holder."""
        along = self._dims.get(name)
        if along is None:
            return pieces[0] if own is None else pieces[0].read(own.dim, own.start, own.stop)
        found, start = list[Tensor](), 0
        for piece in pieces:
            stop = start + piece.shape[along]
            if own is None:
                found.append(piece.read())
            elif own.dim != along:
                found.append(piece.read(own.dim, own.start, own.stop))
            elif (first := max(start, own.start)) < (last := min(stop, own.stop)):
                found.append(piece.read(along, first - start, last - start))
            start = stop
        return torch.cat(found, along)

    def _named(self, nodes: Mapping[int, Named], wanted: Mapping[str, Entries | None]) -> Named:
        """Returns the entries `wanted` of states by tensor. `nodes`: the states of each part, by its number."""
        found = Named()
        for name, own in wanted.items():
            held = {i: nodes[i][name] for i in self._holders[name] if name in nodes.get(i, {})}
            if held:
                found[name] = self._of_tensor(name, held, own)
        return found

    def _of_tensor(self, name: str, nodes: Mapping[int, Any], own: Entries | None) -> Any:
        """Returns the state that the holders of a tensor keep for it. `nodes`: by the holder's number."""
        first = next(iter(nodes.values()))
        if isinstance(first, dict):
            return {key: self._of_tensor(name, {i: node[key] for i, node in nodes.items()}, own) for key in first}
        if isinstance(first, list):
            return [
                self._of_tensor(name, dict(zip(nodes, each, strict=True)), own)
                for each in zip(*nodes.values(), strict=True)
            ]
        if isinstance(first, LazyTensor):
            if all(each.shape == self._states[i]["parameters"][name].shape for i, each in nodes.items()):
                return self._cut(name, list(nodes.values()), own)
            if own is not None and len(first.shape) > 0:
                raise ValueError(OTHER_SHAPE.format(name))
            return first
        if isinstance(first, Tensor) and (own is not None or name in self._dims):
            raise ValueError(f"what is kept for {name} is sparse, and cannot be cut")
        return first

    def _merged(self, at: str, nodes: Mapping[int, Any], wanted: Mapping[str, Entries | None]) -> Any:
        """Returns the state that is the same on all parts. Raises `ValueError` where it differs. `at`: its path."""
        values = [read_all(each) if _is_number(each) else each for each in nodes.values()]
        first = values[0]
        if isinstance(first, Named):
            return self._named(nodes, wanted)
        if isinstance(first, dict):
            keys = dict.fromkeys(key for node in values for key in node)
            under = {key: {i: node[key] for i, node in nodes.items() if key in node} for key in keys}
            return {key: self._merged(f"{at}.{key}".lstrip("."), each, wanted) for key, each in under.items()}
        if isinstance(first, list | LazyTensor | Tensor) and first != [] and not _is_number(first):
            raise ValueError(f"{at} is not kept by the names of parameters")
        if any(each != first for each in values):
            raise ValueError(f"{at} is another one on each part")
        return first


def _has_entries(parameter: LazyTensor, kept: Any) -> bool:
    """Returns whether something that is kept has an entry for each of the parameter's."""
    values = kept.values() if isinstance(kept, dict) else [kept]
    return any(isinstance(each, LazyTensor) and each.shape == parameter.shape for each in values)


def _has_others(kept: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether something that is kept is a tensor of another shape, or has one in it."""
    if isinstance(kept, dict | list):
        return any(_has_others(each, shape) for each in (kept.values() if isinstance(kept, dict) else kept))
    return isinstance(kept, LazyTensor) and kept.shape not in ((), shape)


def _is_number(value: Any) -> bool:
    """Returns whether this is a tensor of one number, and no axis."""
    return isinstance(value, LazyTensor | Tensor) and len(value.shape) == 0


def _alike(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other


_OWN = {"parameters", "sync", "split", "piece", "order"}
