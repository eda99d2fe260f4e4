"""Where workers are in the mesh, and where the entries of parameters are among them."""

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.strategies.core.mesh import Mesh
from paceline.strategies.core.placements import Shard, dims_of, entries, gather, joined, kept_by_first, owned, pieces_of
from paceline.strategies.core.state import state_of

MESH = Mesh({"replica": 2, "stage": 3, "tensor": 2})


def test_ranks_and_positions_are_inverse_and_the_last_axis_varies_fastest() -> None:
    places = [dict(zip(MESH.axes, place, strict=True)) for place in product(range(2), range(3), range(2))]
    assert [MESH.position(rank) for rank in range(MESH.size)] == places
    assert [MESH.rank(place) for place in places] == list(range(12))


def test_those_who_compute_the_same_samples_draw_the_same_numbers() -> None:
    draws = [MESH.drawing(rank) for rank in range(MESH.size)]
    assert draws == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    plain = Mesh({"replica": 3, "stage": 2})
    assert [plain.drawing(rank) for rank in range(6)] == list(range(6))


@pytest.mark.parametrize("axes", [{"stage": 2, "replica": 2}, {"rows": 2}, {"replica": 0}])
def test_axes_have_names_an_order_and_workers(axes: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        Mesh(axes)


class Piece(nn.Module):
    """Half of a weight of four columns, beside a bias that is whole."""

    placements = {"weight": Shard(1)}  # noqa: RUF012

    def __init__(self, piece: int) -> None:
        super().__init__()
        whole = torch.arange(12.0).view(3, 4)
        self.weight = nn.Parameter(whole[:, 2 * piece : 2 * piece + 2].clone())
        self.bias = nn.Parameter(torch.tensor([7.0, 8.0, 9.0]))


def parts() -> list[nn.Module]:
    return [nn.ModuleDict({"piece": Piece(i)}) for i in range(2)]


def test_pieces_are_joined_in_order_and_what_is_whole_is_the_first_ones() -> None:
    states = [state_of(part) for part in parts()]
    whole = joined(states, dims_of(parts()))
    assert torch.equal(whole["piece.weight"], torch.arange(12.0).view(3, 4))
    assert whole["piece.bias"].tolist() == [7.0, 8.0, 9.0]


def test_each_entry_is_owned_once() -> None:
    assert owned(parts(), HALVES) == [["piece.weight", "piece.bias"], ["piece.weight"]]
    assert entries(parts(), HALVES) == [6 + 3, 6]


def test_a_piece_that_several_workers_have_is_owned_by_the_first() -> None:
    """Of 2 x 2 workers, the two along the other axis hold the same piece."""
    mesh = Mesh({"tensor": 2, "domain": 2})
    one, other = parts()
    four = [one, one, other, other]
    assert owned(four, mesh) == [["piece.weight", "piece.bias"], [], ["piece.weight"], []]
    assert entries(four, mesh) == [6 + 3, 0, 6, 0]
    assert [pieces_of(part, mesh, rank) for rank, part in enumerate(four)] == [
        {"piece.weight": i} for i in (0, 0, 1, 1)
    ]


def test_pieces_of_two_stages_are_owned_by_their_workers() -> None:
    mesh = Mesh({"stage": 2, "tensor": 2})
    first, last = ([nn.ModuleDict({name: part.get_submodule("piece")}) for part in parts()] for name in ("a", "b"))
    assert owned([*first, *last], mesh) == [["a.weight", "a.bias"], ["a.weight"], ["b.weight", "b.bias"], ["b.weight"]]


def test_those_along_an_axis_differ_on_it_alone() -> None:
    assert [MESH.along(7, axis) for axis in MESH.axes] == [[1, 7], [7, 9, 11], [6, 7]]


HALVES = Mesh({"tensor": 2})


def gather_at(comm, to: int):
    mine = state_of(parts()[comm.rank])
    whole = gather(mine, [part.to("meta") for part in parts()], HALVES, comm, to)
    return None if whole is None else {name: tensor.tolist() for name, tensor in whole.items()}


@pytest.mark.dist
@pytest.mark.parametrize("to", [0, 1])
def test_the_whole_is_gathered_at_one_worker(fabric, to: int) -> None:
    results = fabric(2, gather_at, to)
    assert results[1 - to] is None
    assert results[to] == {"piece.weight": torch.arange(12.0).view(3, 4).tolist(), "piece.bias": [7.0, 8.0, 9.0]}


@pytest.mark.parametrize(("rank", "kept"), [(0, [3, 5]), (1, [])])
def test_what_all_gather_stays_with_the_first_and_each_takes_part_in_all_of_it(rank: int, kept: list[int]) -> None:
    gathered: list[int] = []

    def pieces() -> Iterator[tuple[str, Tensor]]:
        for size in (3, 5):
            gathered.append(size)
            yield f"of {size}", torch.ones(size)

    found = kept_by_first(cast("Comm", SimpleNamespace(rank=rank)), pieces())
    assert gathered == [3, 5] and [len(each) for each in found.values()] == kept
