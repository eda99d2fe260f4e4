"""A GPT over stages and tensor workers: tied weights, its vocabulary in pieces, and slices of its sequence."""

import pytest
import torch
from oracles import ROUNDING, Plan, distance, identical, serial, train, workers_of
from tensor_cases import LLAMA, PLACES, VOCABULARY, WIDTH, Tokens, gpt, make, tokens

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.exchange.collectives import Fabric, Ring
from paceline.strategies import World
from paceline.strategies.core.placements import dims_of, entries, joined
from paceline.strategies.core.state import state_of
from paceline.strategies.hybrid import Hybrid
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.single import LocalUpdate
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.layers import ColumnLinear
from paceline.strategies.tensor_parallel.vocabulary import VocabularyEmbedding, VocabularyHead
from paceline.tasks.losses import CrossEntropy, Hinge

pytestmark = pytest.mark.dist

SHARED = "embedding.token.weight"
SIZES = [[4, 4], [3, 2], [1, 0], [2, 2]]  # two replicas: even, uneven, one without samples, fewer than micro-batches
SCHEDULES = [("1f1b", None), ("zb_h1", None), ("interleaved", 2), ("gpipe", None), ("zb_v", 2), ("naive", None)]
CHOICES = {  # tensor workers, tied, vocabulary, sequence
    "tied pipeline": (1, True, None, False),
    "tied whole": (2, True, False, False),
    "tied pieces": (2, True, True, False),
    "pieces": (2, False, True, False),
    "slices": (2, False, True, True),
    "tied slices": (2, True, True, True),
    "slices, head whole": (2, False, False, True),
    "tied slices, head whole": (2, True, False, True),
}


def hybrid(stages: int, tensor: int, schedule: str = "1f1b", chunks: int | None = None, **knobs: object) -> Hybrid:
    cut = {1: [], 2: [2], 4: [1, 2, 3], 3: [1, 4]}[stages * (2 if schedule in ("interleaved", "zb_v") else 1)]
    return Hybrid(stages, tensor, schedule, 4, **{"cut": cut, "chunks": chunks, **knobs})


def run(workers, strategy, case, sync=None):
    plan = Plan(strategy, sync or BSP(), case)
    return workers(workers_of(plan), train, plan)


def trains_as_one(workers, choice: str, sizes: list[list[int]], **how: object) -> list[dict]:
    tensor, tied, vocabulary, sequence = CHOICES[choice]
    case = Tokens(sizes, model=make(tied=tied), optimizer=tokens().optimizer)
    strategy = hybrid(2, tensor, **{"vocabulary": vocabulary, "sequence": sequence, **how})
    results = run(workers, strategy, case)
    assert distance(results[strategy.loss_part]["whole"], serial(case)) < ROUNDING
    replicas = [results[i : i + strategy.parts] for i in range(0, len(results), strategy.parts)]
    for replica in replicas[1:]:
        assert all(identical(one["weights"], other["weights"]) for one, other in zip(replicas[0], replica, strict=True))
    if tied and "zb_v" not in how.values():  # which has the first and the last stage on one worker
        for i in range(tensor):
            for first, last in zip(results[i]["trajectory"], results[tensor + i]["trajectory"], strict=True):
                assert torch.equal(first[SHARED], last[SHARED])
    return results


# -- against serial training


@pytest.mark.budget(1)
@pytest.mark.parametrize("choice", CHOICES)
def test_two_replicas_train_as_one_worker_and_copies_are_alike_after_every_step(virtual_workers, choice):
    """2 x 2 x 2, or 2 x 2 x 1."""
    trains_as_one(virtual_workers, choice, SIZES)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_gated_layers_rms_norms_and_rotary_positions_train_as_one_worker(virtual_workers, schedule, tensor):
    case = Tokens([[4]], model=make(**LLAMA), optimizer=tokens().optimizer)
    strategy = hybrid(2, tensor, schedule, sequence=tensor > 1)
    results = run(virtual_workers, strategy, case)
    assert distance(results[strategy.loss_part]["whole"], serial(case)) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("choice", CHOICES)
def test_and_so_they_do_by_every_schedule(virtual_workers, choice, schedule, chunks, recompute):
    trains_as_one(virtual_workers, choice, SIZES, schedule=schedule, chunks=chunks, recompute=recompute)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_and_so_do_four_workers(fabric, choice):
    """1 x 2 x 2, or 2 x 2 x 1."""
    replicas = 2 if CHOICES[choice][0] == 1 else 1
    trains_as_one(fabric, choice, [sizes[:replicas] for sizes in SIZES])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 2), (3, 4), (1, 4), (2, 4)], ids=lambda shape: f"{shape[0]} x {shape[1]}")
def test_and_so_do_larger_grids_and_a_single_stage(virtual_workers, shape):
    case = tokens(each=(6,), tied=True)
    strategy = hybrid(*shape, vocabulary=True, sequence=True)
    results = run(virtual_workers, strategy, case)
    assert distance(results[strategy.loss_part]["whole"], serial(case)) < ROUNDING


@pytest.mark.slow
def test_after_20_steps_in_float32_it_is_within_1e_6_of_one_worker(virtual_workers):
    case = tokens(20, each=(2, 2), dtype=torch.float32, tied=True)
    strategy = hybrid(2, 2, vocabulary=True, sequence=True)
    results = run(virtual_workers, strategy, case)
    assert distance(results[strategy.loss_part]["whole"], serial(case)) < 1e-6


# -- one axis alone


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["naive", "gpipe", "zb_h1"])
def test_a_tied_pipeline_of_one_tensor_worker_is_the_pipeline_bit_for_bit(virtual_workers, schedule):
    case = Tokens(SIZES, model=make(tied=True), optimizer=tokens().optimizer)
    plain = run(virtual_workers, Pipeline(2, schedule, 4, [2]), case)
    found = run(virtual_workers, hybrid(2, 1, schedule), case)
    for one, other in zip(found, plain, strict=True):
        assert identical(one["weights"], other["weights"]) and one["ledger"] == other["ledger"]
        assert one["losses"] == other["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("sequence", [False, True], ids=["", "slices"])
def test_one_stage_is_tensor_parallelism_bit_for_bit(virtual_workers, sequence, tied):
    case = Tokens(SIZES, model=make(tied=tied, dropout=0.25), optimizer=tokens().optimizer)
    knobs = {"vocabulary": True, "sequence": sequence}
    found = run(virtual_workers, hybrid(1, 2, "naive", **knobs), case)
    plain = run(virtual_workers, TensorParallel(2, **knobs), case)
    for one, other in zip(found, plain, strict=True):
        assert identical(one["weights"], other["weights"])
        assert {kind: size for kind, size in one["ledger"].items() if size} == other["ledger"]


@pytest.mark.parametrize("sequence", [False, True], ids=["", "slices"])
@pytest.mark.slow
def test_passes_that_are_computed_again_drop_what_they_dropped_before(virtual_workers, sequence):
    case = Tokens([[4], [3]], model=make(dropout=0.25), optimizer=tokens().optimizer)
    once, again = (
        run(virtual_workers, hybrid(2, 2, vocabulary=True, sequence=sequence, recompute=recompute), case)
        for recompute in (False, True)
    )
    assert all(identical(one["weights"], other["weights"]) for one, other in zip(once, again, strict=True))


# -- what each holds


def test_a_tied_weight_is_cut_alike_on_both_stages_and_counted_once():
    model, strategy = gpt(tied=True), hybrid(2, 4, vocabulary=True)
    parts = strategy.split(model)
    assert strategy.shares
    first, last = parts[:4], parts[4:]
    assert all(isinstance(part.get_submodule("embedding.token"), VocabularyEmbedding) for part in first)
    assert all(isinstance(part.get_submodule("head"), VocabularyHead) for part in last)
    for one, other in zip(first, last, strict=True):
        assert other.get_submodule("head").weight is other.get_parameter(SHARED)
        assert torch.equal(one.get_parameter(SHARED), other.get_parameter(SHARED))
    assert [len(part.get_parameter(SHARED)) for part in parts] == [4, 3, 3, 3] * 2
    assert sum(entries(parts, strategy.mesh)) == sum(parameter.numel() for parameter in model.parameters())
    whole = joined([state_of(part) for part in first], dims_of(parts))
    assert torch.equal(whole[SHARED], model.get_parameter(SHARED))


def test_a_whole_weight_of_two_stages_is_whole_on_both_though_one_has_it_in_a_pair():
    model = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)),
        torch.nn.LayerNorm(4),
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)),
        torch.nn.Linear(4, 4),
    )
    model[3].weight = model.get_parameter("0.0.weight")
    parts = Hybrid(2, 2, cut=[1]).split(model)
    cut = [[name for name, layer in part.named_modules() if isinstance(layer, ColumnLinear)] for part in parts]
    assert cut == [[], [], ["2.0"], ["2.0"]]
    assert all(part.get_parameter("0.0.weight").shape == (4, 4) for part in parts)


def test_the_vocabulary_is_cut_by_itself_only_where_the_loss_says_that_it_is_the_mean_cross_entropy():
    with torch.device("meta"):
        model, batch = gpt(), torch.empty(4, PLACES, dtype=torch.int64)
        settle = Hybrid(2, 2, cut=[2]).resolved
        assert settle(model, batch, batch, CrossEntropy().loss) == {"vocabulary": True}
        assert settle(model, batch, batch, Hinge().loss) == {"vocabulary": False}
        assert Hybrid(2, 1, cut=[2]).resolved(model, batch, batch, CrossEntropy().loss) == {"vocabulary": False}
        assert Hybrid(2, 2, vocabulary=True).resolved(model, batch, batch, CrossEntropy().loss) == {}
        by_time = Hybrid(2, 2, cut="time", sequence=True).resolved(model, batch, batch, CrossEntropy().loss)
        assert by_time == {"vocabulary": True, "cut": [2]}


# -- bytes


@pytest.mark.budget(1)
@pytest.mark.parametrize("collective", [Fabric(), Ring()], ids=["fabric", "ring"])
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("choice", CHOICES)
def test_each_rank_sends_what_is_stated(virtual_workers, choice, schedule, chunks, recompute, collective):
    tensor, tied, vocabulary, sequence = CHOICES[choice]
    knobs = {"vocabulary": vocabulary, "sequence": sequence, "recompute": recompute, "collective": collective}
    strategy = hybrid(2, tensor, schedule, chunks, **knobs)
    with torch.device("meta"):
        stated = strategy.cost(strategy.split(gpt(tied=tied)), torch.empty(7, PLACES, dtype=torch.int64))
    results = run(virtual_workers, strategy, Tokens([[7]] * 3, model=make(tied=tied)), LocalUpdate())
    for result, traffic in zip(results, stated, strict=True):
        sent = {kind: size for kind, size in result["ledger"].items() if size}
        assert sent == {kind: pytest.approx(3 * size) for kind, size in traffic.items() if size}


def test_each_worker_sends_its_piece_of_a_tied_weight_once_and_pieces_may_be_uneven():
    strategy = hybrid(2, 2, vocabulary=True)
    with torch.device("meta"):
        batch = torch.empty(4, PLACES, dtype=torch.int64)
        one, other = (strategy.cost_along(strategy.split(gpt(tied=tied)), batch) for tied in (False, True))
    rows = [VOCABULARY // 2 + 1, VOCABULARY // 2] * 2
    more = [8 * WIDTH * each for each in rows]
    assert [traffic.get("all_reduce", 0) for traffic in other["stage"]] == more
    assert not any("all_reduce" in traffic for traffic in one["stage"])
    assert one["tensor"] == other["tensor"]


def test_sums_of_a_stage_are_those_of_its_layers():
    """A block has two sums each way; the first stage one for what it looked up, the last one those of the loss."""
    strategy = hybrid(2, 2, vocabulary=True)
    with torch.device("meta"):
        along = strategy.cost_along(strategy.split(gpt()), torch.empty(8, PLACES, dtype=torch.int64))
    once = sum(Fabric().traffic(8.0 * 8 * PLACES, World(2)).values())  # bytes of one number a token
    first, last = (sum(along["tensor"][i].values()) / once for i in (0, 2))
    assert first == pytest.approx(WIDTH * (4 + 1)) and last == pytest.approx(WIDTH * (4 + 1) + 3)


# -- refused


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"vocabulary": True}, r"strategy.vocabulary=true: .*strategy.tensor=1 is one. Choose strategy.tensor=2, or"),
        ({"sequence": True}, r"strategy.sequence=true: .* or strategy.sequence=false\.$"),
    ],
)
def test_one_tensor_worker_has_nothing_to_cut_a_vocabulary_or_a_sequence_for(knobs, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Hybrid(2, 1, **knobs)
    assert caught.value.exit_code == 2


def test_what_cannot_be_cut_is_refused_in_the_words_of_a_hybrid():
    mlp = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    with torch.device("meta"):
        batch = torch.empty(4, PLACES, dtype=torch.int64)
        model, loss = gpt(), CrossEntropy().loss
        with pytest.raises(
            ConfigError, match=r"vocabulary=true: Sequential does not end in .*strategy.vocabulary=false\.$"
        ):
            Hybrid(1, 2, vocabulary=True).resolved(mlp, torch.empty(4, 4), batch[:, 0], loss)
        with pytest.raises(ConfigError, match=r"for the mean cross-entropy alone, task=cross_entropy"):
            Hybrid(2, 2, vocabulary=True).resolved(model, batch, batch, Hinge().loss)
        with pytest.raises(ConfigError, match=r"a sequence of 3 .* Choose 2 or 4 places, or strategy.sequence=false"):
            Hybrid(2, 2, cut="time", sequence=True).resolved(model, batch[:, :3], batch[:, :3], loss)
    with pytest.raises(
        ConfigError, match=r"sequence=true: no stage of Sequential has a norm .*strategy.sequence=false\.$"
    ):
        Hybrid(1, 2, sequence=True).split(mlp)


def test_workers_of_a_stage_with_pieces_of_other_sizes_keep_what_their_own_take():
    shape = ["model.vocabulary=257", "model.width=32", "model.n_head=2", "model.n_layer=2"]
    how = ["strategy=hybrid", "strategy.stages=2", "strategy.tensor=2", "strategy.vocabulary=true"]
    batch = ["batch_size=8", "strategy.micro_batches=2"]
    plan = prepare(["tracking=none", "hardware.workers=4", "model=gpt", "data=text", *shape, *how, *batch]).plan()
    first, alike, more, less = (part.memory["activations"] for part in plan.parts)
    assert first == alike and more > less  # of 257 tokens, one worker's head has 129 and the other's 128
