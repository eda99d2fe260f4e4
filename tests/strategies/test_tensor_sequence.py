"""Slices of the sequence between tensor-parallel layers: against dense, in bytes, in memory, and what is refused."""

import pytest
import torch
from oracles import Plan, distance, identical, serial, train
from tensor_cases import PLACES, WIDTH, gpt, tokens
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.engine.base import memory
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.find import Kind, degrees_of, kinds_of, vocabulary_of
from paceline.strategies.tensor_parallel.sequence import runs_of
from paceline.strategies.tensor_parallel.vocabulary import loss_over
from paceline.tasks.base import DataSpec
from paceline.tasks.losses import CrossEntropy
from paceline.tasks.models.gpt import GPT

pytestmark = pytest.mark.dist


def sliced(degree: int = 2, **knobs: object) -> TensorParallel:
    return TensorParallel(degree, **{"vocabulary": True, "sequence": True, **knobs})


def test_a_gpt_in_slices_of_its_sequence_trains_as_one_worker(virtual_workers):
    case = tokens()
    results = virtual_workers(2, train, Plan(sliced(), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13


@pytest.mark.budget(0.4)
@pytest.mark.parametrize(
    ("degree", "vocabulary", "knobs"),
    [
        (4, True, {}),
        (2, False, {}),
        (2, True, {"tied": True}),
        (2, True, {"recompute": True}),
        (2, False, {"tied": True}),
    ],
    ids=["4", "head whole", "tied", "recompute", "tied and whole"],
)
@pytest.mark.slow
def test_and_so_it_does_at_other_degrees_with_other_heads_and_recomputed(virtual_workers, degree, vocabulary, knobs):
    case = tokens(each=(2, 1), **knobs)
    results = virtual_workers(2 * degree, train, Plan(sliced(degree, vocabulary=vocabulary), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13


@pytest.mark.slow
def test_after_20_steps_in_float32_it_is_within_1e_6_of_one_worker(virtual_workers):
    case = tokens(20, dtype=torch.float32)
    results = virtual_workers(2, train, Plan(sliced(), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-6


def test_what_is_whole_stays_the_same_bits_though_each_worker_has_the_gradient_of_its_slice(virtual_workers):
    case = tokens(5, each=(2, 2))
    results = virtual_workers(4, train, Plan(sliced(), LocalSGD(2), case))
    one, other = (result["weights"] for result in results[:2])
    whole = [name for name in one if "norm" in name or "position" in name or name.endswith("project.bias")]
    assert len(whole) == 2 * (4 + 2) + 2 + 1
    assert identical({name: one[name] for name in whole}, {name: other[name] for name in whole})


def test_bytes_are_as_stated_and_as_the_paper_has_them(virtual_workers):
    """Of one block and a head, S = n t w numbers: the slices of three column layers are gathered twice, the gradients
    of two row layers' outputs once, those of the block's input once; what goes the other way is reduce-scattered.
    """
    case, strategy = tokens(1, n_layer=1), sliced(2)
    with torch.device("meta"):
        [stated, _] = strategy.cost(strategy.split(gpt(n_layer=1)), torch.empty(3, PLACES, dtype=torch.int64))
    results = virtual_workers(2, train, Plan(strategy, BSP(), case))
    assert all(result["ledger"] == pytest.approx(stated) for result in results)
    size, norms = 8 * 3 * PLACES * WIDTH, 3 * 2
    assert stated["all_gather"] == (3 * 2 + 2 + 1) * size / 2
    assert stated["reduce_scatter"] == (3 + 2) * size / 2
    # the embedding, a maximum and two sums a token, and the norms' gradients
    assert stated["all_reduce"] == size + 8 * 3 * PLACES * 3 + 8 * norms * WIDTH


def kept(strategy: TensorParallel) -> int:
    with torch.device("meta"):
        part = strategy.split(gpt(dtype=torch.float32, width=64, dropout=0.1))[0]
        batch = torch.empty(3, PLACES, dtype=torch.int64)
        with memory.activations() as account:
            loss_over(part, CrossEntropy().loss)(part(batch), batch)
    return account.peak


def test_activations_between_pairs_are_kept_in_slices():
    """Of a block, S numbers of 4 bytes: the inputs of two norms and of two column layers, two masks, and what
    two norms found of each place; of the end, the inputs of a norm and of the head.
    """
    places = 3 * PLACES
    size = places * 64
    block, end = (4 + 2) * 4 * size + 2 * 8 * places, 2 * 4 * size + 8 * places
    assert kept(sliced(sequence=False)) - kept(sliced()) == (2 * block + end) / 2


def test_runs_are_what_computes_each_place_by_itself():
    model = gpt()
    with_head, without = kinds_of(model, 2, vocabulary=vocabulary_of(model)), kinds_of(model, 2)
    assert runs_of(model, with_head) == [["block1", "block2", "norm", "head"]]
    assert runs_of(model, without) == [["block1", "block2", "norm", "head"]]
    attention_whole: dict[str, Kind] = {name: kind for name, kind in without.items() if "attention" not in name}
    assert runs_of(model, attention_whole) == []
    pair = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)]
    mixed = nn.Sequential(nn.LayerNorm(4), *pair, nn.Flatten(), nn.Linear(8, 2))
    assert runs_of(mixed, kinds_of(mixed, 2)) == [["0", "1", "2", "3"]]


@pytest.mark.parametrize(
    ("shape", "degree", "says"),
    [
        (
            (2, 5, 4),
            2,
            r"sequence of 5 cannot be cut into 2 equal slices. Choose 4 or 6 places, or strategy.sequence=f",
        ),
        ((2, 3, 4), 4, r"sequence of 3 cannot be cut into 4 equal slices. Choose 4 places, or strategy.sequence=false"),
        (
            (2, 6, 4),
            4,
            r"6 cannot be cut into 4 equal slices. Choose 4 or 8 places, strategy.degree=2, or strategy.seq",
        ),
        ((2, 4), 2, r"activations \[2, 4\] have no sequence to cut"),
    ],
)
def test_what_has_no_slices_is_refused(shape, degree, says):
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    [part, *_] = sliced(degree, vocabulary=False).split(model)
    with pytest.raises(ConfigError, match=says):
        part(torch.zeros(shape))


@pytest.mark.parametrize(
    ("t", "heads", "degree", "says"),
    [
        (63, 4, 2, "Choose 62 or 64 places, or strategy.sequence=false"),  # 3 divides it, and not the 4 heads
        (66, 4, 4, "Choose 64 or 68 places, strategy.degree=2, or strategy.sequence=false"),
        (63, 6, 2, "Choose 62 or 64 places, strategy.degree=3, or strategy.sequence=false"),
        (64, 8, 3, "does not divide the 8 keys and values a place of block1.attention. Choose 2 or 4"),
    ],
)
def test_a_degree_that_is_advised_is_one_that_the_layers_take(t, heads, degree, says):
    model = GPT(DataSpec((t,), torch.int64, (t,), 50, None, None), n_layer=1, n_head=heads, width=8 * heads)
    with pytest.raises(ConfigError, match=rf"{says}\.$"):
        sliced(degree).split(model)[0](torch.zeros((2, t), dtype=torch.int64))


def test_degrees_are_those_that_all_layers_take():
    model = nn.Sequential(nn.Embedding(5, 12), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 8), nn.Linear(8, 5))
    kinds: dict[str, Kind] = {"0": "vocabulary", "1": "column", "3": "row", "4": "vocabulary"}
    found = degrees_of(model, kinds)
    assert [n for n in range(2, 13) if n in found] == [2, 3, 4]  # of 12 and no more than the 5 rows
    assert found.nearest(3) == [2, 4] and found.nearest(2) == [3] and found.nearest(5, dividing=6) == [3]
    alone = degrees_of(model, {"0": "vocabulary", "4": "vocabulary"})
    assert [n for n in range(2, 13) if n in alone] == [2, 3, 4, 5] and alone.nearest(9, dividing=7) == []


def test_a_model_without_such_layers_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"sequence=true: Sequential has no norm beside .* strategy.sequence=false"):
        sliced(vocabulary=False).split(model)
