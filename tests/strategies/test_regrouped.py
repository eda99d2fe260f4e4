"""A state that parts of one layout saved is read by parts of another, each entry once, without the rest."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.strategies.core.placements import Shard
from paceline.strategies.core.regrouped import Entries, SavedParts
from paceline.strategies.core.state import LazyTensor, Named, State, in_file, mean_of, read_all, to_bytes


def written(folder: Path, states: list[State]) -> list[State]:
    for i, state in enumerate(states):
        (folder / f"{i}").write_bytes(to_bytes(state))
    return [in_file(folder / f"{i}") for i in range(len(states))]


def of_pieces(pieces: list[Tensor], dim: int) -> list[State]:
    """States of parts that have one weight cut, with a momentum of the same pieces."""
    return [
        {
            "parameters": {"w": piece, "b": torch.arange(3.0)},
            "sync": {"optimizer": {"state": {0: {"m": -piece, "step": 7}}, "param_groups": []}},
            "order": ["w", "b"],
            "split": {"w": dim},
            "piece": {"w": i},
            "average": {"count": 2, "tensors": Named(w=2 * piece, b=torch.ones(3))},
        }
        for i, piece in enumerate(pieces)
    ]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_entries_are_those_of_the_whole_however_it_was_cut(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = torch.arange(5.0 * 7).view(5, 7)
    dim = data.draw(st.integers(0, 1))
    cuts = sorted(data.draw(st.sets(st.integers(1, whole.shape[dim] - 1), max_size=3)))
    pieces = list(whole.tensor_split(cuts, dim))
    saved = SavedParts(written(tmp_path_factory.mktemp("parts"), of_pieces(pieces, dim)))
    along = data.draw(st.integers(0, 1))
    start = data.draw(st.integers(0, whole.shape[along] - 1))
    stop = data.draw(st.integers(start + 1, whole.shape[along]))
    mine, wanted = whole.narrow(along, start, stop - start), {"w": Entries(along, start, stop)}
    assert torch.equal(read_all(saved._parameter("w", wanted["w"])), mine)
    assert torch.equal(saved.parameters()["w"], whole) and saved.shapes() == {"w": [5, 7], "b": [3]}
    kept = saved._named(saved._of_optimizers(), wanted)["w"]
    assert torch.equal(kept["m"], -mine) and kept["step"] == 7
    average = saved._merged("", saved._rest(), wanted)["average"]
    assert torch.equal(average["tensors"]["w"], 2 * mine) and average["count"] == 2


def test_a_part_reads_its_own_entries_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of a file than its slice comes into memory."""
    whole = torch.arange(64.0).view(8, 8)
    saved = SavedParts(written(tmp_path, of_pieces(list(whole.chunk(4)), 0)))
    read: list[int] = []
    original = LazyTensor.read

    def counted(self: LazyTensor, *where: Any) -> Tensor:
        found = original(self, *where)
        read.append(found.numel())
        return found

    monkeypatch.setattr(LazyTensor, "read", counted)
    assert torch.equal(read_all(saved._parameter("w", Entries(0, 3, 5))), whole[3:5])
    assert read == [8, 8]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sync": {"optimizer": {"state": {}}, "rule": torch.ones(2)}}, "sync.rule is not kept by the names"),
        ({"sync": {"servers": [{"a": 1}]}}, "sync.servers is not kept by the names"),
        ({"scale": {"value": 3.0}}, "scale.value is another one on each part"),
        ({"order": None}, "an earlier version saved"),
    ],
)
def test_what_is_of_one_layout_is_refused_before_anything_is_read(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    states = of_pieces(list(torch.arange(4.0).chunk(2)), 0)
    states = [state | {"scale": {"value": 1.0}} for state in states]
    states[1] |= changed
    for state in states:
        if changed.get("order", "") is None:
            del state["order"]
        if "sync" in changed:
            state["sync"] = changed["sync"]
    with pytest.raises(ValueError, match=said):
        SavedParts(written(tmp_path, states)).check([], torch.optim.SGD)


def test_the_mean_of_replicas_is_that_of_each_tensor_over_those_that_have_it(tmp_path: Path) -> None:
    one = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor([4]), "t": 3, "rest": [torch.tensor(2.0)]}
    more = {"rest": [torch.tensor(4.0)], "more": Named(w=torch.ones(2))}
    states = written(tmp_path, [one, {"a": torch.tensor([2.0, 5.0]), "n": torch.tensor([9]), "t": 3, **more}])
    mean = read_all(mean_of(states))
    assert mean["a"].tolist() == [1.5, 4.0] and mean["n"].tolist() == [4] and mean["t"] == 3
    assert mean["rest"][0] == 3 and mean["more"]["w"].tolist() == [1, 1] and isinstance(mean["more"], Named)


class Cut(nn.Module):
    """Has a piece of a weight."""

    placements: ClassVar = {"w": Shard(0)}

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))


def test_state_of_another_shape_than_its_weight_goes_with_whole_weights_alone(tmp_path: Path) -> None:
    def states(pieces: int) -> list[State]:
        made = of_pieces(list(torch.arange(4.0).chunk(pieces)), 0)
        for state in made:
            state["sync"]["optimizer"]["state"] = {0: {"rows": torch.ones(9)}, 1: {"step": 7}}
        return made

    whole = SavedParts(written(tmp_path, states(1)))
    named = whole._of_optimizers()
    assert torch.equal(read_all(whole._named(named, {"w": None})["w"]["rows"]), torch.ones(9))
    with pytest.raises(ValueError, match="what is kept for w has another shape"):
        whole._named(named, {"w": Entries(0, 0, 2)})
    whole.check([nn.Linear(1, 1)], torch.optim.SGD)
    with pytest.raises(ValueError, match="what is kept for w has another shape"):
        whole.check([Cut()], torch.optim.SGD)
