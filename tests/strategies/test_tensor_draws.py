"""Dropout over the pieces of layers: alike where a tensor is whole, unlike where workers have other entries of it."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from oracles import Plan, identical, momentum, train
from tensor_cases import PLACES, Tokens, gpt, make
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.strategies import Batch
from paceline.strategies.core.batch import BeforeBackward
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.draws import Draws
from paceline.tasks.losses import CrossEntropy

pytestmark = pytest.mark.dist
N = 64


@pytest.fixture
def masks_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dropout keeps the mask that it drew last. A class of its own would not be cut, as its forward is unknown."""
    forward = nn.Dropout.forward

    def kept(self: nn.Dropout, input: Tensor) -> Tensor:
        output = forward(self, input)
        self.mask = (output != 0).detach()
        return output

    monkeypatch.setattr(nn.Dropout, "forward", kept)


def dropping() -> nn.Sequential:
    """On [n, t, w]: dropout of a whole, within a pair, and of a whole again (with `sequence`, of slices)."""
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(5, N),
            whole=nn.Dropout(0.5),
            turn=nn.Hardtanh(-9.0, 9.0),
            norm=nn.LayerNorm(N),
            a=nn.Linear(N, 2 * N),
            within=nn.Dropout(0.5),
            b=nn.Linear(2 * N, N),
            after=nn.Dropout(0.5),
            again=nn.Linear(N, 2 * N),
            inside=nn.Dropout(0.5),
            back=nn.Linear(2 * N, N),
            unflatten=nn.Hardtanh(-9.0, 9.0),
            end=nn.Dropout(0.5),
            head=nn.Linear(N, 5),
        )
    )


def masks_of(comm: Comm, sequence: bool, seed: int) -> dict[str, Tensor]:
    nothing: BeforeBackward = lambda *_: None  # noqa: E731
    torch.manual_seed(0)
    strategy = TensorParallel(2, sequence=sequence)
    strategy.prepare(dropping(), CrossEntropy().loss, comm, nothing)
    torch.manual_seed(seed)
    tokens = torch.zeros(2, PLACES, dtype=torch.int64)
    strategy.forward_backward(Batch(tokens, tokens, 2))
    found: dict[str, Any] = {
        name: layer.mask for name, layer in strategy.module.named_modules() if isinstance(layer, nn.Dropout)
    }
    return {**found, "next draw": torch.rand(9)}


def alike(one: Tensor, other: Tensor) -> float:
    """The share of equal entries: half, of masks that have nothing to do with each other."""
    return float((one == other).float().mean())


@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
def test_masks_of_pieces_differ_and_those_of_whole_tensors_are_the_same(virtual_workers, masks_kept, sequence):
    one, other = virtual_workers(2, masks_of, sequence, 7)
    pieces = {"within", "inside"} | ({"after"} if sequence else set())
    for name in ("whole", "within", "after", "inside", "end", "next draw"):
        assert one[name].shape == other[name].shape
        if name in pieces:
            assert 0.4 < alike(one[name], other[name]) < 0.6, name
        else:
            assert torch.equal(one[name], other[name]), name
    # nor does one layer of a piece repeat what another drew, or another step
    assert 0.4 < alike(one["within"], one["inside"]) < 0.6
    later, _ = virtual_workers(2, masks_of, sequence, 8)
    assert 0.4 < alike(one["within"], later["within"]) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
def test_with_dropout_what_is_whole_stays_alike_and_a_run_repeats_to_the_bit(virtual_workers, sequence):
    case = Tokens([[2]] * 4, model=make(dropout=0.3), optimizer=momentum)
    plan = Plan(TensorParallel(2, vocabulary=True, sequence=sequence), BSP(), case)
    one, other = virtual_workers(2, seeded, plan)
    again, _ = virtual_workers(2, seeded, plan)
    assert identical(one["weights"], again["weights"])
    for name in one["weights"]:
        if "norm" in name or "position" in name or name.endswith("project.bias"):
            assert torch.equal(one["weights"][name], other["weights"][name])


def seeded(comm: Comm, plan: Plan) -> dict[str, object]:
    torch.manual_seed(5)  # as the engine seeds each step, alike along the tensor axis
    return train(comm, plan)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
def test_what_is_computed_again_for_backward_drops_the_same(virtual_workers, sequence):
    kept, again = (
        virtual_workers(
            2,
            seeded,
            Plan(
                TensorParallel(2, vocabulary=True, sequence=sequence),
                BSP(),
                Tokens([[2]] * 3, model=make(dropout=0.3, recompute=recompute), optimizer=momentum),
            ),
        )
        for recompute in (False, True)
    )
    assert identical(kept[0]["whole"], again[0]["whole"])


def test_a_piece_that_draws_nothing_leaves_the_common_numbers_as_they_were():
    draws, device = Draws(), torch.device("cpu")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    draws.enter(1, device)
    draws.leave(device)
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(3)
    draws.enter(1, device)
    torch.rand(2)
    draws.leave(device)
    assert torch.equal(torch.rand(3), expected[1:])


def test_without_dropout_numbers_are_those_of_one_worker():
    torch.manual_seed(3)
    [part, _] = TensorParallel(2).split(gpt())
    before = torch.get_rng_state()
    part.train()(torch.zeros(1, PLACES, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), before)
