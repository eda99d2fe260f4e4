"""State as bytes and back."""

import json
import struct
import weakref
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.core.state import (
    ShardedTensor,
    blocks_of,
    from_bytes,
    recv_state,
    sharded_of,
    to_bytes,
    to_messages,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@st.composite
def some_tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return torch.arange(torch.Size(shape).numel()).view(shape).to(draw(st.sampled_from(DTYPES)))


names = st.text(st.sampled_from("ab._0"), max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    scalars | some_tensors(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(st.dictionaries(names | st.integers(), trees, max_size=4))
def test_a_tree_comes_back_as_it_was(tree):
    assert same(from_bytes(to_bytes(tree)), tree)
    assert same(recv_state(7, cast(Any, Arrived(to_messages(tree)))), tree)


class Arrived:
    """A worker's end of a fabric, with messages of worker 7 in it."""

    def __init__(self, messages) -> None:
        self._messages = list(messages)

    def recv(self, tensor, src) -> None:
        message = self._messages.pop(0)
        assert (src, tensor.dtype, tensor.shape) == (7, message.dtype, message.shape)
        tensor.copy_(message)


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)])
def test_an_optimizer_goes_on_with_its_state_bit_for_bit(make):
    def steps(model, optimizer, seeds):
        for seed in seeds:
            torch.manual_seed(seed)
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()

    def fresh():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        return model, make(model.parameters())

    straight, optimizer = fresh()
    steps(straight, optimizer, [1, 2, 3, 4])
    first, optimizer = fresh()
    steps(first, optimizer, [1, 2])
    saved = to_bytes({"model": dict(first.state_dict()), "optimizer": optimizer.state_dict()})
    second, optimizer = fresh()
    state = from_bytes(saved)
    second.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    steps(second, optimizer, [3, 4])
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters(), strict=True))


def test_tensors_that_share_memory_or_have_strides_are_saved_by_value():
    base = torch.arange(12.0).view(3, 4)
    tree = {"whole": base, "row": base[1], "column": base[:, 1], "transposed": base.t()}
    assert same(from_bytes(to_bytes(tree)), tree)


def test_names_that_read_alike_once_joined_stay_apart():
    one, two, three = (torch.full((2,), float(i)) for i in range(3))
    tree = {"a.b": one, "a": {"b": two, "b#2": one}, "a.b#2": three, 0: {"x": three}, "0": {"x": two}, "0.x": one}
    assert same(from_bytes(to_bytes(tree)), tree)


def test_the_bytes_do_not_follow_later_changes():
    tensor = torch.zeros(3)
    data = to_bytes({"t": tensor})
    tensor.fill_(1)
    assert torch.equal(from_bytes(data)["t"], torch.zeros(3))


def test_what_is_neither_tensor_number_nor_string_is_refused():
    with pytest.raises(TypeError, match=r"a\.b is a set"):
        to_bytes({"a": {"b": {1}}})


@given(st.binary(max_size=200))
def test_bytes_that_are_no_state_are_a_value_error(data):
    with pytest.raises(ValueError):
        from_bytes(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dict", "list", "__tensor__", "__metadata__", "tree", "x"]), inner, max_size=3
        )
    ),
)


@given(json_values)
def test_a_header_of_another_make_is_a_value_error(header):
    text = json.dumps(header).encode()
    with pytest.raises(ValueError):
        from_bytes(struct.pack("<Q", len(text)) + text)


@given(json_values)
def test_a_tree_of_another_make_is_a_value_error_or_a_tree(tree):
    """Whatever stands where the tree should stand."""
    text = json.dumps({"__metadata__": {"tree": json.dumps(tree)}}).encode()
    text += b" " * (-len(text) % 8)
    try:
        from_bytes(struct.pack("<Q", len(text)) + text)
    except ValueError:
        pass


def test_a_truncated_state_is_a_value_error():
    data = to_bytes({"w": torch.arange(100.0), "n": 3})
    for length in range(0, len(data), 17):
        with pytest.raises(ValueError):
            from_bytes(data[:length])


class Gathering:
    """Sharded tensors, and how many of what they gathered were held at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.held, self.most = 0, 0

    def tensor(self, name: str, value: torch.Tensor) -> ShardedTensor:
        def gather() -> torch.Tensor:
            self.order.append(name)
            whole = value.clone()
            weakref.finalize(whole, self._let_go)
            self.held += 1
            self.most = max(self.most, self.held)
            return whole

        return ShardedTensor(tuple(value.shape), value.dtype, gather)

    def _let_go(self) -> None:
        self.held -= 1


def test_what_replicas_hold_in_pieces_is_gathered_one_tensor_after_the_other() -> None:
    values = {str(i): torch.randn(3, i + 1, dtype=dtype) for i, dtype in enumerate([torch.bfloat16, torch.float64] * 4)}
    gathering = Gathering()
    state = {name: gathering.tensor(name, value) for name, value in values.items()} | {"own": torch.ones(2)}
    length = 0
    for block in blocks_of(state):
        length += len(block)
        del block
    assert gathering.most <= 2, "the one that is written, and the next"
    order = list(gathering.order)
    for sharded in sharded_of({name: each for name, each in state.items() if name != "own"}):
        sharded.gather()
    assert gathering.order == order * 2, "replica 0 and the others gather in one order"
    data = to_bytes(state)
    assert len(data) == length
    found = from_bytes(data)
    assert all(torch.equal(found[name], value) for name, value in values.items())


def length_of(data: bytes) -> int:
    """Returns the length of safetensors' header."""
    return int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("dtype", safetensors.torch._TYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)], ids=str)
def test_a_tensor_of_any_type_is_read_by_safetensors_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value, narrow = torch.randint(0, 2, shape).to(dtype), torch.ones(3, dtype=torch.bool)
    data = to_bytes({"n": narrow, "x": value})
    found = {name.lstrip("01."): each for name, each in safetensors.torch.load(data).items()}
    begin = json.loads(data[8 : 8 + length_of(data)])["1.x"]["data_offsets"][0]
    assert begin % dtype.itemsize == 0, "the narrow one stands behind it"
    assert found["x"].dtype == dtype and found["x"].shape == value.shape
    assert to_bytes({"x": found["x"]}) == to_bytes({"x": value}) and torch.equal(found["n"], narrow)


def test_a_type_that_no_file_holds_is_refused_by_its_place() -> None:
    with pytest.raises(
        TypeError, match=r"^\.a\.b is a tensor of torch\.complex128, which files of weights cannot hold$"
    ):
        to_bytes({"a": {"b": torch.zeros(1, dtype=torch.complex128)}})
