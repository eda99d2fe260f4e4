"""A plan of names -> what is cut, for a module of the user's own, as torch's `parallelize_module` takes one."""

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from oracles import Plan, distance, momentum, serial, train
from tensor_cases import PLACES, VOCABULARY, Tokens
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.find import Kind, kinds_of

pytestmark = pytest.mark.dist


class Own(nn.Module):
    """Blocks of query, key, value and output layers of their own, and a gated two-layer network; no nn.Sequential."""

    def __init__(self, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([OwnBlock(width, width // heads) for _ in range(2)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class OwnBlock(nn.Module):
    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 12), nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


PLAN: dict[str, Kind] = {
    "emb": "vocabulary",
    "blocks.*.[qkv]": "column",
    "blocks.*.out": "row",
    "blocks.*.gate": "column",
    "blocks.*.up": "column",
    "blocks.*.down": "row",
    "head": "vocabulary",
}


def own64() -> nn.Module:
    return Own().double()


@pytest.mark.parametrize("degree", [2, 4])
def test_a_module_of_ones_own_is_cut_by_its_plan_and_trains_as_one_worker(virtual_workers, degree):
    case = Tokens([[3, 2]] * 3, model=own64, optimizer=momentum)
    results = virtual_workers(2 * degree, train, Plan(TensorParallel(degree, plan=PLAN), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13
    held = results[0]["weights"]
    assert held["blocks.1.q.weight"].shape == (8 // degree, 8) and held["blocks.1.down.weight"].shape == (
        8,
        12 // degree,
    )
    assert len(held["emb.weight"]) == -(-VOCABULARY // degree)


def test_without_a_plan_it_has_nothing_that_is_found():
    with pytest.raises(ConfigError, match=r"Own has no two linear layers .* say in strategy.plan which layers"):
        TensorParallel(2).split(Own())


def test_a_star_is_one_part_of_a_name():
    plan: dict[str, Kind] = {"blocks.*.gate": "column", "*": "vocabulary", "blocks.1.down": "row"}
    cut = kinds_of(Own(), 2, plan | ONLY)
    assert cut == {"blocks.0.gate": "column", "blocks.1.gate": "column", "blocks.1.down": "row"} | ONLY


ONLY: dict[str, Kind] = {"emb": "vocabulary", "head": "vocabulary"}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            {"blocks.*.fc1": "column"},
            r"strategy.plan.blocks.\*.fc1=column: the model has no such layer; did you mean bl",
        ),
        ({"block.0.down": "row"}, r"no such layer; did you mean blocks.0.down or"),
        ({"emb": "column"}, r"plan.emb=column: emb is of class Embedding, and must be an nn.Linear. Choose"),
        (
            {"blocks.0": "row"},
            r"blocks.0 is of class OwnBlock, and must be an nn.Linear. Choose blocks.0.q or blocks.0.k",
        ),
        ({"head": "column"}, r"13 outputs of the layer head cannot be cut into 4 equal pieces. Choose 12 or 16"),
        ({"blocks.*.down": "row", "blocks.0.*": "column"}, r"blocks.0.down is row by one entry and column by another"),
        ({"blocks.*.down": "row"}, r"12 inputs .* into 8 equal pieces. Choose 8 or 16 of them"),
        ({}, r"strategy.plan=\{\}: says nothing"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_plan_that_cannot_be_followed_is_refused_with_the_nearest(plan, says):
    degree = 8 if "into 8" in says else 4
    with pytest.raises(ConfigError, match=says):
        TensorParallel(degree, plan=plan).split(Own())


def test_a_layer_of_a_sequential_may_be_named_by_its_number():
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    by_number, by_name = (
        [part.state_dict() for part in TensorParallel(2, plan=cast(Any, plan)).split(model)]
        for plan in ({0: "column", 2: "row"}, {"0": "column", "2": "row"})
    )
    assert [{k: v.shape for k, v in part.items()} for part in by_number] == [
        {k: v.shape for k, v in part.items()} for part in by_name
    ]
    assert by_number[0]["0.weight"].shape == (6, 8)


def test_tied_weights_are_cut_in_both_places_or_in_none():
    model = Own()
    model.head.weight = model.emb.weight
    [part, _] = TensorParallel(2, plan=ONLY).split(model)
    assert part.get_parameter("head.weight") is part.get_parameter("emb.weight")
    with pytest.raises(ConfigError, match=r"emb and head have one weight \(tied\); both must be vocabulary"):
        TensorParallel(2, plan={"emb": "vocabulary"}).split(model)


BY_COLUMNS: dict[str, Kind] = {"blocks.*.gate": "column", "blocks.*.up": "column"}


def rehearsed(plan: dict[str, Kind], model: nn.Module | None = None) -> Tensor:
    """As a plan of a run does, before anything starts."""
    strategy, batch = TensorParallel(2, plan=plan), torch.zeros(1, PLACES, dtype=torch.int64)
    parts = strategy.split(model or Own())
    [only] = next(strategy.profile(parts, batch, batch, lambda out, _: out.sum(), torch.device("cpu")))
    return only.forward()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (BY_COLUMNS, r"plan: blocks.0.up is by columns, .* add blocks.0.down, which comes next, as row, .*"),
        ({"blocks.1.[qkv]": "column"}, r"blocks.1.v is by columns, .* add blocks.1.out, which comes next, as row"),
        ({"blocks.0.gate": "column", "blocks.0.down": "row"}, r"gate is by columns.*beside blocks.0.gate as column"),
        ({"head": "column"}, r"head is by columns, .* add the linear layer that comes next as row.*leave head out$"),
        ({"blocks.*.down": "row"}, r"down is by rows and takes pieces of 6 inputs, and is given all 12, .* as column"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_layer_whose_other_half_is_missing_is_named_with_the_rule_and_what_to_add(plan, says):
    model = Own()
    model.head = nn.Linear(8, 14)  # an even one
    with pytest.raises(ConfigError, match=f"strategy.*{says}"):
        rehearsed(plan, model)


def test_a_mistake_of_the_models_own_is_left_as_it_is():
    model = Own()
    model.blocks[1].out = nn.Linear(9, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rehearsed({**BY_COLUMNS, "blocks.*.down": "row"}, model)


def test_a_whole_plan_is_rehearsed():
    assert rehearsed({name: kind for name, kind in PLAN.items() if name != "head"}).dim() == 0
