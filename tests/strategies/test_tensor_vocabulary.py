"""An embedding and a head by rows of the vocabulary: against dense, to the bit where it can be, and in bytes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Plan, distance, serial, train
from tensor_cases import LLAMA, PLACES, VOCABULARY, WIDTH, gpt, tokens
from torch import nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.exchange.collectives import Fabric, Ring
from paceline.exchange.collectives.base import added
from paceline.strategies import World
from paceline.strategies.core.placements import dims_of, entries, joined
from paceline.strategies.core.state import state_of
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.find import vocabulary_of
from paceline.strategies.tensor_parallel.group import TensorGroup
from paceline.strategies.tensor_parallel.vocabulary import cross_entropy, loss_over
from paceline.tasks.losses import CrossEntropy, Hinge

pytestmark = pytest.mark.dist


def cut(degree: int, **knobs: Any) -> TensorParallel:
    return TensorParallel(degree, vocabulary=True, **knobs)


def test_a_gpt_with_its_vocabulary_in_pieces_trains_as_one_worker(fabric):
    case = tokens()
    results = fabric(2, train, Plan(cut(2), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("degree", [2, 4])
def test_and_so_do_replicas_with_tied_weights_or_not(virtual_workers, degree, tied):
    case = tokens(each=(2, 3), tied=tied)
    results = virtual_workers(2 * degree, train, Plan(cut(degree), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13
    held = results[0]["weights"]
    assert held["embedding.token.weight"].shape == (-(-VOCABULARY // degree), WIDTH)
    assert ("head.weight" in held) == (not tied)


@pytest.mark.parametrize("sequence", [False, True], ids=["", "slices"])
@pytest.mark.parametrize("degree", [2, 4])
def test_a_gated_feed_forward_layer_is_cut_by_units_and_trains_as_one_worker(virtual_workers, degree, sequence):
    case, strategy = tokens(1, **LLAMA), cut(degree, sequence=sequence)
    with torch.device("meta"):
        stated = strategy.cost(strategy.split(gpt(**LLAMA)), torch.empty(3, PLACES, dtype=torch.int64))[0]
    results = virtual_workers(degree, train, Plan(strategy, BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13
    assert all(result["ledger"] == pytest.approx(stated) for result in results)
    held = results[0]["weights"]
    assert held["block1.mlp.expand.weight"].shape == (2 * 12 // degree, WIDTH)
    assert held["block1.mlp.project.weight"].shape == (WIDTH, 12 // degree)


def test_a_gated_feed_forward_layer_sends_what_a_plain_one_does():
    sent = []
    for knobs in ({}, {"gated": True, "ffn_width": 12}):
        strategy = cut(2)
        with torch.device("meta"):
            sent.append(strategy.cost(strategy.split(gpt(**knobs)), torch.empty(3, PLACES, dtype=torch.int64)))
    assert sent[0] == sent[1]


@pytest.mark.slow
def test_after_20_steps_in_float32_it_is_within_1e_6_of_one_worker(virtual_workers):
    case = tokens(20, dtype=torch.float32)
    results = virtual_workers(2, train, Plan(cut(2), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-6


def test_uneven_pieces_are_rows_in_order_and_counted_once():
    model = gpt(tied=True)
    parts: list[Any] = cut(4).split(model)
    assert [len(part.head.weight) for part in parts] == [4, 3, 3, 3]
    assert all(part.head.weight is part.embedding.token.weight for part in parts)
    assert [part.head.first for part in parts] == [part.embedding.token.first for part in parts] == [0, 4, 7, 10]
    assert sum(entries(parts, cut(4).mesh)) == sum(parameter.numel() for parameter in model.parameters())
    whole = joined([state_of(part) for part in parts], dims_of(parts))
    assert all(torch.equal(whole[name], tensor) for name, tensor in state_of(model).items())


def of_pieces(comm: Comm, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    group = TensorGroup(comm.size)
    group.comm = comm
    own = logits.tensor_split(comm.size, dim=1)[comm.rank].clone().requires_grad_()
    first = sum(piece.shape[1] for piece in logits.tensor_split(comm.size, dim=1)[: comm.rank])
    loss = cross_entropy(own, targets, first, group)
    (3 * loss).backward()
    assert own.grad is not None
    return loss.detach(), own.grad


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["", "large logits"])
def test_the_loss_and_its_gradient_are_those_of_all_logits(virtual_workers, scale):
    torch.manual_seed(0)
    logits, targets = scale * torch.randn(9, VOCABULARY, dtype=torch.float64), torch.randint(VOCABULARY, (9,))
    results = virtual_workers(3, of_pieces, logits, targets)
    dense = logits.clone().requires_grad_()
    loss = F.cross_entropy(dense, targets)
    (3 * loss).backward()
    assert all(torch.allclose(each[0], loss, rtol=1e-14) for each in results)
    assert torch.allclose(torch.cat([each[1] for each in results], dim=1), dense.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("collective", [Fabric(), Ring()], ids=["fabric", "ring"])
def test_nobody_gathers_logits(virtual_workers, collective):
    """Two blocks of two sums each way; the embedding's, the head's input, a maximum and two sums a token."""
    strategy, case = cut(2, collective=collective), tokens(1)
    with torch.device("meta"):
        [stated, _] = strategy.cost(strategy.split(gpt()), torch.empty(3, PLACES, dtype=torch.int64))
    n, world = 3 * PLACES, World(2)
    sums = collective.traffic(8 * n * ((2 * 2 * 2 + 2) * WIDTH + 2), world)
    assert stated == pytest.approx(added(sums, Fabric().traffic(8 * n, world)))
    results = virtual_workers(2, train, Plan(strategy, BSP(), case))
    assert all(result["ledger"] == pytest.approx(stated) for result in results)


def test_the_vocabulary_is_cut_by_itself_only_where_the_loss_says_that_it_is_the_mean_cross_entropy():
    with torch.device("meta"):
        model, batch = gpt(), torch.empty(3, PLACES, dtype=torch.int64)
        settle = TensorParallel(2).resolved
        assert settle(model, batch, batch, CrossEntropy().loss) == {"vocabulary": True}
        assert settle(model, batch, batch, Hinge().loss) == {"vocabulary": False}
        assert settle(model, batch, batch, lambda f, y: CrossEntropy().loss(f, y)) == {"vocabulary": False}
        mlp = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        rows, labels = torch.empty(3, 4), torch.empty(3, dtype=torch.int64)
        assert settle(mlp, rows, labels, CrossEntropy().loss) == {"vocabulary": False}


class Padded(nn.Sequential):
    """An embedding of as many rows, one of which is never trained."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(5, 4, padding_idx=0), nn.LayerNorm(4), nn.Linear(4, 5))


def test_an_embedding_that_does_more_than_look_up_is_whole_and_so_is_its_head():
    assert vocabulary_of(gpt()) == ["embedding.token", "head"]
    assert vocabulary_of(Padded()) == []


def test_what_cannot_be_cut_is_refused():
    with torch.device("meta"), pytest.raises(ConfigError, match=r"vocabulary=true: Padded does not end in .* linear"):
        batch = torch.empty(3, PLACES, dtype=torch.int64)
        cut(2).resolved(Padded(), batch, batch, CrossEntropy().loss)
    with pytest.raises(ConfigError, match=r"for the mean cross-entropy alone, task=cross_entropy"):
        loss_over(cut(2).split(gpt())[0], Hinge().loss)
    with pytest.raises(ConfigError, match=r"the 3 rows of .* cannot be cut into 4; at most 3"):
        layers = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
        cut(4).split(nn.Sequential(*layers, nn.LayerNorm(4), nn.Linear(4, 3)))
