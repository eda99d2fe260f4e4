"""States: trees of tensors, as bytes without pickle (safetensors, and JSON for the rest), and those of modules."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ...comm import Comm
from ...compat.storages import parts_of_sparse
from ...conf.errors import ConfigError

State = dict[str, Any]  # a tree of dicts and lists with tensors, numbers and strings in it
COMPILED = "_orig_mod."  # in the names of a model's state, where torch.compile wraps a module
_TENSOR = "__tensor__"
_DTYPES = {  # as safetensors' headers call them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
T = TypeVar("T")
_NO_STATE = (safetensors.SafetensorError, KeyError, TypeError, ValueError)  # ValueError: JSON's too


class Named(dict[str, Any]):
    """The state of some tensors, by their names in the whole model: for each a tensor of its shape, or a dict of such
    tensors.

    A run that goes on under another strategy cuts the state like the tensors, for the parts that have them.
    """


@dataclass(frozen=True)
class LazyTensor:
    """A tensor in a file, which is read when it is asked for."""

    file: Any  # safetensors' open file
    key: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.key).get_shape())

    def read(self, dim: int = 0, start: int = 0, stop: int | None = None) -> Tensor:
        """Returns a copy of the entries `start` to `stop` of dimension `dim`."""
        if start == 0 and stop is None:
            return self.mapped().clone()
        return self.file.get_slice(self.key)[(slice(None),) * dim + (slice(start, stop),)].clone()

    def mapped(self) -> Tensor:
        """Returns the tensor in the file's own pages, to be copied at once."""
        return self.file.get_tensor(self.key)


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor that the replicas hold in pieces, which is gathered when it is written.

    `gather` returns the whole tensor on replica 0. All replicas call it, for one tensor after the other in the order
    of `sharded_of`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    gather: Callable[[], Tensor | None]


def to_bytes(state: State) -> bytes:
    """A tree of dicts (string or integer keys), lists, tensors, numbers, strings and None, as safetensors bytes."""
    return b"".join(blocks_of(state))


def blocks_of(state: State) -> Iterator[bytes | memoryview]:
    """Returns the bytes of `to_bytes` in blocks: the header, and then one tensor after the other.

    Only the tensor of the current block is copied to the host, and a sharded one gathered.
    """
    packed: dict[str, Tensor | ShardedTensor] = {}
    header: dict[str, Any] = {"__metadata__": {"tree": json.dumps(_pack(state, "", packed))}}
    leaves, end = _in_order(packed), 0
    for name, leaf in leaves.items():
        start, end = end, end + prod(leaf.shape) * leaf.dtype.itemsize
        header[name] = {"dtype": _DTYPES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return chain([len(text).to_bytes(8, "little") + text], map(_bytes_of, leaves.values()))


def _in_order(packed: Mapping[str, Tensor | ShardedTensor]) -> dict[str, Tensor | ShardedTensor]:
    """Returns the leaves as a file has them: the widest first, so that each begins at a multiple of its width."""
    return dict(sorted(packed.items(), key=lambda item: -item[1].dtype.itemsize))


def _bytes_of(leaf: Tensor | ShardedTensor) -> memoryview:
    tensor = leaf.gather() if isinstance(leaf, ShardedTensor) else leaf
    assert tensor is not None, "replica 0 writes"
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def sharded_of(state: State) -> list[ShardedTensor]:
    """Returns the sharded tensors of a state in the order in which replica 0 writes them."""
    packed: dict[str, Tensor | ShardedTensor] = {}
    _pack(state, "", packed)
    return [leaf for leaf in _in_order(packed).values() if isinstance(leaf, ShardedTensor)]


def from_bytes(data: bytes) -> State:
    """The tree that `to_bytes` was given. Raises `ValueError` when the bytes are not such a tree."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _unpack(json.loads(header["__metadata__"]["tree"]), safetensors.torch.load(data).__getitem__)
    except _NO_STATE as error:
        raise ValueError(f"not a paceline state: {error}") from error


def in_file(path: Path) -> State:
    """Returns the tree in a file of `to_bytes`, with `LazyTensor` for dense tensors. Raises `ValueError`."""
    try:
        file = safetensors.safe_open(path, "pt")
        return _unpack(json.loads(file.metadata()["tree"]), lambda key: LazyTensor(file, key))
    except _NO_STATE as error:
        raise ValueError(f"not a paceline state: {error}") from error


def read_all(state: Any) -> Any:
    """Returns the tree with each `LazyTensor` read, and each `ShardedTensor` gathered: None where it is not kept."""
    match state:
        case LazyTensor():
            return state.read()
        case ShardedTensor():
            return state.gather()
        case dict():
            return type(state)((key, read_all(value)) for key, value in state.items())
        case list():
            return [read_all(value) for value in state]
    return state


def mapped(tensors: Mapping[str, LazyTensor | Tensor]) -> dict[str, Tensor]:
    """Returns the tensors, those in a file in its own pages, to be copied at once."""
    return {name: each.mapped() if isinstance(each, LazyTensor) else each for name, each in tensors.items()}


def in_pieces(state: State) -> State:
    """Returns what a sync mode saved, as `in_file` returns it: all is read but the tensors of the optimizer's state."""
    own = read_all({key: value for key, value in state.items() if key != "optimizer"})
    kept = {key: value for key, value in state["optimizer"].items() if key != "state"}
    return {**own, "optimizer": {**read_all(kept), "state": state["optimizer"]["state"]}}


def own_entries(of_optimizer: State) -> State:
    """Returns the entries of an optimizer's state that its class adds to those of torch's."""
    return {key: each for key, each in of_optimizer.items() if key not in ("state", "param_groups")}


def mean_of(states: Sequence[Any]) -> Any:
    """Returns one tree for the states that replicas saved, as `in_file` returns them: the mean of each tensor of floats
    over the states that have it, and everything else from the first state. What only one has stays in its file.
    """
    first = states[0]
    if len(states) == 1:
        return first
    match first:
        case dict():
            keys = dict.fromkeys(key for state in states for key in state)
            return type(first)((key, mean_of([state[key] for state in states if key in state])) for key in keys)
        case list():
            return [mean_of(values) for values in zip(*states, strict=True)]
        case LazyTensor() | Tensor():
            total = read_all(first)
            if not total.is_floating_point():
                return total
            for other in states[1:]:
                total += read_all(other)
            return total / len(states)
    return first


def _pack(node: Any, path: str, tensors: dict[str, Tensor | ShardedTensor]) -> Any:
    match node:
        case Tensor() if node.is_sparse:  # the momentum of sparse gradients
            parts = [*parts_of_sparse(node.detach()), torch.tensor(node.shape)]
            return {"sparse": [_pack(each, f"{path}.{i}", tensors) for i, each in enumerate(parts)]}
        case Tensor() | ShardedTensor():
            if node.dtype not in _DTYPES:
                raise TypeError(
                    f"{path or 'the state'} is a tensor of {node.dtype}, which files of weights cannot hold"
                )
            name = f"{len(tensors)}{path}"  # the number keeps {"a.b": t} and {"a": {"b": u}} apart
            tensors[name] = node
            return {_TENSOR: name}
        case dict():
            # [key, value] pairs: an optimizer's state has integer keys, which JSON would turn into strings
            for key in node:
                if not isinstance(key, str | int | float | None):
                    raise TypeError(
                        f"{path or 'the state'} has a {type(key).__name__} as key; use texts or numbers{_out(key)}"
                    )
            kind = "named" if isinstance(node, Named) else "dict"
            return {kind: [[key, _pack(value, f"{path}.{key}", tensors)] for key, value in node.items()]}
        case list() | tuple():
            return {"list": [_pack(value, f"{path}.{i}", tensors) for i, value in enumerate(node)]}
        case None | bool() | int() | float() | str():
            return node
    raise TypeError(
        f"{path or 'the state'} is a {type(node).__name__}; states hold tensors, numbers and strings{_out(node)}"
    )


def _out(value: object) -> str:
    """Returns the words for a value of NumPy's, which has a number or a tensor."""
    if isinstance(value, np.ndarray):
        return ". Choose torch.from_numpy(...) or .tolist()"
    return ". Choose .item(), its number" if isinstance(value, np.number | np.bool_) else ""


def _unpack(node: Any, leaf: Callable[[str], Any]) -> Any:
    match node:
        case {"__tensor__": key}:
            return leaf(key)
        case {"sparse": parts}:
            indices, values, shape = (read_all(_unpack(each, leaf)) for each in parts)
            return torch.sparse_coo_tensor(indices, values, shape.tolist(), check_invariants=True)
        case {"dict": pairs}:
            return {key: _unpack(value, leaf) for key, value in pairs}
        case {"named": pairs}:
            return Named((key, _unpack(value, leaf)) for key, value in pairs)
        case {"list": values}:
            return [_unpack(value, leaf) for value in values]
    return node


def to_messages(state: State) -> tuple[Tensor, Tensor]:
    """The state as two messages: its length, int64 [1], and its bytes, uint8 [length]."""
    data = torch.frombuffer(bytearray(to_bytes(state)), dtype=torch.uint8)
    return torch.tensor([len(data)]), data


def recv_state(src: int, comm: Comm) -> State:
    """The state that `src` sends as `to_messages`."""
    length = torch.zeros(1, dtype=torch.int64)
    comm.recv(length, src)
    data = torch.empty(int(length), dtype=torch.uint8)
    comm.recv(data, src)
    return from_bytes(data.numpy().tobytes())


def uncompiled(state: Mapping[str, T]) -> dict[str, T]:
    """Returns the state under the names that it has where neither the model nor a layer is `torch.compile`d."""
    return {name.replace(COMPILED, ""): each for name, each in state.items()}


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers. A parameter that two layers share (tied weights) has its first name only.

    Raises `ConfigError` for extra state that is no tensor.
    """
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    again = {name for name, _ in module.named_parameters(remove_duplicate=False)} - parameters.keys()
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"model: its state has {name} of type {type(value).__name__}, and files of weights hold tensors. Keep "
                "it in a buffer"
            )
    return {**parameters, **{name: state[name] for name in state if name not in parameters and name not in again}}


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns the persistent buffers: what `state_of` gives beside parameters."""
    parameters = {name for name, _ in module.named_parameters()}
    return {name: each for name, each in state_of(module).items() if name not in parameters}


def state_with(module: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the module's state with `parameters` (by name) in place of its own; each tensor under one name."""
    return {**state_of(module), **parameters}


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy what `state_of` gave into a module of the same kind. Raises `ValueError` when it is of another kind."""
    mine = state_of(module)
    if mine.keys() != state.keys():
        raise ValueError(f"the state differs from the model in {', '.join(sorted(mine.keys() ^ state.keys())[:5])}")
    module.load_state_dict(state, strict=False)


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the model's direct children by name. A child that has two names is there twice, unlike in
    `named_children`.
    """
    return {name: layer for name, layer in model.named_modules(remove_duplicate=False) if name and "." not in name}
