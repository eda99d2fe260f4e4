"""Layers over stages: naive is serial training, GPipe is gradient accumulation, both bit for bit; and with replicas."""

from functools import partial
from itertools import combinations, pairwise
from time import process_time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    CLASSES,
    FEATURES,
    ROUNDING,
    Branching,
    Case,
    Plan,
    deep64,
    distance,
    identical,
    mlp,
    mlp64,
    serial,
    shifted_loss,
    shifting,
    train,
    workers_of,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from paceline.conf.errors import ConfigError
from paceline.strategies.core.balance import balanced
from paceline.strategies.core.batch import Batch
from paceline.strategies.external import deepspeed_settings
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.blocks import blocks_of
from paceline.strategies.pipelining.chunks import Chunks, weights_of
from paceline.strategies.pipelining.execute import forward
from paceline.strategies.pipelining.own import rows_of
from paceline.strategies.pipelining.split_backward import backward_to_input
from paceline.strategies.single import LocalUpdate
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.downpour import Downpour
from paceline.tasks.base import DataSpec
from paceline.tasks.models.mlp import MLP

SIZES = [[8], [7], [5], [2], [1]]  # one replica: even, uneven, fewer samples than micro-batches


def gpipe(stages: int, micro_batches: int, recompute: bool = False, cut: Any = "parameters") -> Pipeline:
    return Pipeline(stages, "gpipe", micro_batches, cut, recompute)


def run(workers, strategy, case, sync=None):
    """Each worker's result, and the whole model's weights put together from the stages of replica 0."""
    sync = sync or BSP()
    plan = Plan(strategy, sync, case)
    results = workers(workers_of(plan), train, plan)
    whole = {name: w for stage in results[: strategy.parts] for name, w in stage["weights"].items()}
    return results, whole


# -- one replica


@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
def test_naive_is_serial_training_bit_for_bit(workers, stages, recompute):
    case = Case(SIZES, model=mlp)
    _, whole = run(workers, Pipeline(stages, "naive", recompute=recompute), case)
    assert identical(whole, serial(case))


@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3, 4])
@pytest.mark.parametrize("stages", [2, 3])
def test_gpipe_is_gradient_accumulation_bit_for_bit(workers, stages, micro_batches, recompute):
    case = Case(SIZES, model=mlp)
    _, whole = run(workers, gpipe(stages, micro_batches, recompute), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, micro_batches)))


@pytest.mark.budget(1)
@pytest.mark.dist
@pytest.mark.parametrize("stages", [4, 5])
def test_gpipe_with_more_stages_is_gradient_accumulation_bit_for_bit(workers, stages):
    case = Case(SIZES, model=deep64)
    _, whole = run(workers, gpipe(stages, 3), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 3)))


OTHERS = [("1f1b", None), ("interleaved", 2), ("interleaved", 3), ("zb_h1", None), ("zb_v", 2)]


def seven() -> nn.Sequential:
    """Layers that keep other things for backward, one of them used twice."""
    twice = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(
        nn.Linear(FEATURES, 10),
        nn.Sequential(nn.LayerNorm(10), nn.Tanh(), nn.Linear(10, 8, bias=False)),
        Residual(),
        nn.Sequential(nn.GELU(), nn.Linear(8, FEATURES)),
        nn.Sequential(twice, nn.ReLU(), twice),
        nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES)),
        nn.Linear(FEATURES, CLASSES),
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.inner(torch.sigmoid(x))


@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), OTHERS)
def test_every_schedule_is_gradient_accumulation_bit_for_bit(fabric, schedule, chunks, recompute):
    """On batches of fewer samples than there are micro-batches, too."""
    case = Case(SIZES, model=seven)
    for micro_batches in [4] if chunks else [1, 3, 5]:
        strategy = Pipeline(2, schedule, micro_batches, "parameters", recompute, chunks)
        _, whole = run(fabric, strategy, case)
        assert identical(whole, serial(case, pieces=lambda n, most=micro_batches: min(n, most)))


class Again(nn.Module):
    """Computes its layers again for backward, whose dropout must come out the same; counts how often it computes."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.computed = layers, 0

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._compute, x, use_reentrant=False)

    def _compute(self, x: Tensor) -> Tensor:
        self.computed += 1
        return self.layers(x)


def seven_again() -> nn.Sequential:
    """Of its stages the last one computes nothing again, whichever way it is cut here."""
    return nn.Sequential(*(layer if i in (0, 5, 6) else Again(layer) for i, layer in enumerate(seven())))


@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("schedule", "cut"),
    [("1f1b", [5]), ("interleaved", [2, 4, 5]), ("zb_h1", [5]), ("zb_h1", [3]), ("zb_v", [2, 4, 5])],
)
def test_models_that_compute_layers_again_are_gradient_accumulation_bit_for_bit(fabric, schedule, cut, recompute):
    case = Case(SIZES, model=seven_again)
    _, whole = run(fabric, Pipeline(2, schedule, 4, cut, recompute), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 4)))


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "cut"), [("1f1b", [5]), ("zb_h1", [5]), ("zb_v", [2, 4, 5])])
def test_each_layer_is_computed_again_once(virtual_workers, schedule, cut):
    """Its tries on the meta device are of copies."""

    def computed(comm):
        model = seven_again()
        strategy = Pipeline(2, schedule, 4, cut)
        strategy.prepare(model, nn.functional.cross_entropy, comm, lambda roots, last: None)
        strategy.forward_backward(Batch(torch.randn(8, FEATURES), torch.randint(CLASSES, (8,)), 8))
        return [layer.computed for layer in strategy.module.modules() if isinstance(layer, Again)]

    assert [n for counts in virtual_workers(2, computed) for n in counts] == [2 * 4] * 4


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", None), ("interleaved", 2), ("zb_h1", None)])
def test_more_stages_are_gradient_accumulation_bit_for_bit(virtual_workers, schedule, chunks):
    case = Case(SIZES, model=seven)
    _, whole = run(virtual_workers, Pipeline(3, schedule, 6, "parameters", False, chunks), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 6)))


class Masked(nn.Module):
    """A tensor that is a plain attribute, and goes nowhere with its module."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.arange(FEATURES) % 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


def masked() -> nn.Sequential:
    layers = [nn.Sequential(Masked(), nn.Linear(FEATURES, FEATURES)) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(FEATURES, CLASSES))


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "stages"), [("gpipe", 3), ("interleaved", 2)])
def test_tensors_that_are_plain_attributes_of_layers_do_not_matter(virtual_workers, schedule, stages):
    case = Case([[4], [3]], model=masked)
    _, whole = run(virtual_workers, Pipeline(stages, schedule, 2), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 2)))


def in_place() -> nn.Sequential:
    layers = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, FEATURES)) for _ in range(3)]
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), *layers, nn.Linear(FEATURES, CLASSES))


@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "cut"), [("1f1b", [2]), ("zb_h1", [2]), ("interleaved", [1, 2, 3])])
def test_a_stage_may_begin_with_a_layer_that_works_in_place(virtual_workers, schedule, cut, recompute):
    case = Case([[4], [3]], model=in_place)
    _, whole = run(virtual_workers, Pipeline(2, schedule, 2, cut, recompute), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 2)))


def test_layers_that_work_in_place_can_be_looked_at():
    with torch.device("meta"):
        model, inputs, targets = in_place(), torch.empty(4, FEATURES), torch.empty(4, dtype=torch.int64)
    for cut in ("time", "memory"):
        assert Pipeline(2, cut=cut).resolved(model, inputs, targets, nn.functional.cross_entropy)["cut"]


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "chunks"), OTHERS)
def test_stated_traffic_of_every_schedule_is_what_a_step_sends(virtual_workers, schedule, chunks):
    case, strategy = Case([[8]] * 3, model=seven), Pipeline(2, schedule, 4, chunks=chunks)
    with torch.device("meta"):
        stated = strategy.cost(strategy.split(seven()), torch.empty(8, FEATURES))
    results, _ = run(virtual_workers, strategy, case, LocalUpdate())
    assert [r["ledger"].get("send", 0) for r in results] == [3 * traffic["send"] for traffic in stated]
    assert sum(traffic["send"] for traffic in stated) > 0


@pytest.mark.dist
@pytest.mark.parametrize(
    "sync",
    [BSP(), BSP(bucket_mb=1e-4, first_bucket_mb=1e-4), BSP(find_unused=True), BSP(shard="gradients")],
    ids=["default", "tiny buckets", "find unused", "sharded"],
)
@pytest.mark.parametrize(("schedule", "chunks"), OTHERS[1:])
def test_two_replicas_of_every_schedule_equal_serial_training(virtual_workers, sync, schedule, chunks):
    case = Case([[4, 4], [3, 2], [1, 0], [2, 2]], model=lambda: seven().double())
    results, whole = run(virtual_workers, Pipeline(2, schedule, 4, chunks=chunks), case, sync)
    assert distance(whole, serial(case)) < ROUNDING
    assert identical(results[0]["weights"], results[2]["weights"])
    assert identical(results[1]["weights"], results[3]["weights"])


@pytest.mark.dist
def test_the_whole_state_is_gathered_of_all_chunks(virtual_workers):
    results, whole = run(virtual_workers, Pipeline(2, "interleaved", 4), Case([[4]], model=seven))
    assert identical(results[1]["whole"], whole)


def test_a_stage_that_takes_its_backward_apart_computes_no_gradient_twice():
    """Of the inputs first, and of the weights from where that passed: together, as many products as one pass has."""
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    module = Chunks(model, [blocks_of(model)])
    x = torch.randn(3, 5, requires_grad=True)
    counted = []
    for apart in (False, True):
        module.zero_grad()
        x.grad = None
        output = module(x)
        with FlopCounterMode(display=False) as counter:
            if apart:
                later = backward_to_input(output, torch.ones(3, 4), x, weights_of(module, 0))
                assert x.grad is not None and all(weight.grad is None for weight in module.parameters())
                first = counter.get_total_flops()
                later()
                assert first == counter.get_total_flops() / 2
            else:
                output.backward(torch.ones(3, 4))
        counted.append((counter.get_total_flops(), x.grad, [weight.grad for weight in module.parameters()]))
    assert counted[0][0] == counted[1][0] > 0
    assert torch.equal(counted[0][1], counted[1][1])
    assert all(torch.equal(a, b) for a, b in zip(counted[0][2], counted[1][2], strict=True))


@pytest.mark.dist
def test_gpipe_is_one_big_batch_but_for_rounding(workers):
    case = Case(SIZES)
    _, whole = run(workers, gpipe(2, 4), case)
    assert distance(whole, serial(case)) < ROUNDING


class Swap(nn.Module):
    """[n, FEATURES] -> [n, 2, FEATURES // 2], not contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, 2).transpose(1, 2)


def swapping() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), Swap(), nn.Flatten(), nn.Linear(FEATURES, CLASSES))


@pytest.mark.dist
def test_activations_of_any_strides_go_between_stages(workers):
    case = Case([[4], [3]], model=swapping)
    _, whole = run(workers, gpipe(2, 2, cut=[2]), case)
    assert identical(whole, serial(case, pieces=lambda n: min(n, 2)))


@pytest.mark.dist
def test_the_loss_is_the_batchs_mean_at_the_last_stage_alone(workers):
    case = Case(SIZES)
    results, _ = run(workers, gpipe(2, 3), case)
    assert results[0]["losses"] == [None] * len(SIZES)
    inputs, targets = case.step(0)
    expected = torch.nn.functional.cross_entropy(case.start()(inputs), targets)
    assert results[1]["losses"][0] == pytest.approx(expected.item(), rel=1e-6)  # kept in float32


def with_buffers() -> nn.Sequential:
    first, last = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)
    first.register_buffer("seen", torch.arange(3))
    return nn.Sequential(first, nn.ReLU(), last)


@pytest.mark.dist
@pytest.mark.parametrize("model", [mlp, with_buffers])
def test_the_whole_state_is_gathered_at_the_last_stage(workers, model):
    case = Case([[4]], model=model)
    results, whole = run(workers, gpipe(2, 2), case)
    assert results[0]["whole"] is None
    gathered = results[1]["whole"]
    buffers = dict(case.start().named_buffers())
    assert gathered.keys() == case.start().state_dict().keys()
    assert identical(gathered, {**whole, **buffers})


@pytest.mark.dist
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (3, 3)])
def test_stated_traffic_within_a_replica_is_what_a_step_sends(workers, stages, micro_batches):
    case = Case([[7]] * 3, model=mlp)
    strategy = gpipe(stages, micro_batches)
    inputs = torch.empty(7, FEATURES, device="meta")
    with torch.device("meta"):
        stated = strategy.cost(strategy.split(mlp()), inputs)
    results, _ = run(workers, strategy, case, LocalUpdate())
    assert [r["ledger"].get("send", 0) for r in results] == [3 * traffic["send"] for traffic in stated]
    assert sum(traffic["send"] for traffic in stated) > 0


# -- several replicas


@pytest.mark.dist
@pytest.mark.parametrize("sizes", [[[4, 4]] * 3, [[4, 4], [3, 2], [1, 0], [2, 2]]], ids=["even", "uneven"])
@pytest.mark.parametrize(
    "sync",
    [BSP(), BSP(bucket_mb=1e-4, first_bucket_mb=1e-4), BSP(find_unused=True)],
    ids=["default", "tiny buckets", "find unused"],
)
def test_two_replicas_of_two_stages_equal_serial_training(workers, sync, sizes):
    case = Case(sizes)
    results, whole = run(workers, gpipe(2, 3), case, sync)
    assert distance(whole, serial(case)) < ROUNDING
    assert identical(results[0]["weights"], results[2]["weights"])
    assert identical(results[1]["weights"], results[3]["weights"])


@pytest.mark.dist
def test_one_replica_behind_parameter_servers_is_gradient_accumulation_bit_for_bit(workers):
    """A server for each stage."""
    case = Case([[4], [3], [1]], model=mlp)
    results, whole = run(workers, gpipe(2, 3), case, Downpour())
    assert len(results) == 4
    assert identical(whole, serial(case, pieces=lambda n: min(n, 3)))


# -- where to cut


weights_and_parts = st.lists(st.integers(0, 60), min_size=1, max_size=9).flatmap(
    lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights)))
)


def sums(weights, cuts):
    return [sum(weights[a:b]) for a, b in pairwise([0, *cuts, len(weights)])]


@given(weights_and_parts)
def test_balanced_cuts_are_as_light_as_the_best_of_all_cuts(drawn):
    """The best: as few parts as can be without weight, then the lightest heaviest part."""
    weights, parts = drawn
    cuts = balanced(weights, parts)
    every = [sums(weights, list(tried)) for tried in combinations(range(1, len(weights)), parts - 1)]
    assert len(cuts) == parts - 1 and cuts == sorted(set(cuts)) and all(0 < cut < len(weights) for cut in cuts)
    filled = [tried for tried in every if 0 not in tried]
    if filled:
        assert 0 not in sums(weights, cuts)
        assert max(sums(weights, cuts)) == min(max(tried) for tried in filled)


def test_no_stage_is_left_without_parameters_where_that_can_be():
    """A heavy layer behind one without parameters: cutting between them costs nothing, and leaves an empty stage."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    for stages in (2, 3):
        assert all(list(stage.parameters()) for stage in Pipeline(stages).split(model))


@given(st.lists(st.sampled_from([0, 3, 5, 30]), min_size=2, max_size=8), st.data())
def test_stages_put_together_are_the_model(widths, data):
    model = nn.Sequential(*[nn.Linear(width, 1) if width else nn.ReLU() for width in widths])
    stages = data.draw(st.integers(2, len(widths)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(widths) - 1), min_size=stages - 1, max_size=stages - 1)))
    try:
        parts = Pipeline(stages, cut=cuts).split(model)
    except ConfigError as error:
        assert "parameters to train" in str(error)
        assert not all(any(widths[a:b]) for a, b in pairwise([0, *cuts, len(widths)]))
        return
    assert [name for part in parts for name, _ in part.named_children()] == [n for n, _ in model.named_children()]
    assert [layer for part in parts for layer in part.children()] == list(model)


def test_a_model_of_ours_names_the_knob_that_makes_more_layers():
    model = MLP(DataSpec((4,), classes=3), hidden=[8])
    with pytest.raises(ConfigError, match=r"Choose strategy\.stages <= 2, or more layers by model\.hidden\.$"):
        Pipeline(4).split(model)


@pytest.mark.parametrize(
    ("strategy", "model", "says"),
    [
        (Pipeline(2), Branching, r"no nn\.Sequential.*blocks"),
        (Pipeline(6), mlp, "5 layers to cut between, of which 3 have parameters to train. Choose strategy.stages <= 3"),
        (Pipeline(4), mlp, "of which 3 have parameters to train. Choose strategy.stages <= 3"),
        (Pipeline(2, cut=[0]), mlp, "rising layer indices from 1 to 4"),
        (Pipeline(2, cut=[5]), mlp, "rising layer indices from 1 to 4"),
        (Pipeline(3, cut=[3, 2]), mlp, "rising layer indices from 1 to 4"),
        (Pipeline(3, cut=[2, 2]), mlp, "rising layer indices from 1 to 4"),
        (Pipeline(3, cut=[2]), mlp, "needs 2 rising"),
        (Pipeline(2), lambda: nn.Sequential(nn.Linear(2, 2)), "1 layers to cut between. Choose strategy=data_parallel"),
        (Pipeline(3, cut=[1, 2]), mlp, "stage 1 has no parameters to train"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_can(strategy, model, says):
    with pytest.raises(ConfigError, match=says) as caught:
        strategy.split(model())
    assert caught.value.exit_code == 2


@given(st.integers(1, 200), st.integers(1, 20))
def test_micro_batches_are_near_equal_none_empty_and_make_up_the_batch(batch_size, micro_batches):
    sizes = Pipeline(micro_batches=micro_batches).micro_sizes(batch_size)
    assert sum(sizes) == batch_size
    assert len(sizes) == min(micro_batches, batch_size)
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_a_cut_model_shares_its_parameters_with_the_whole():
    model = mlp64()
    assert {id(p) for part in Pipeline(2).split(model) for p in part.parameters()} == {
        id(p) for p in model.parameters()
    }


@pytest.mark.dist
def test_a_model_and_a_loss_may_change_a_micro_batch_in_place(workers):
    cases = [
        Case(SIZES, model=partial(shifting, in_place), loss=partial(shifted_loss, in_place=in_place))
        for in_place in (True, False)
    ]
    found = [run(workers, gpipe(2, 4), case)[1] for case in cases]
    assert identical(*found)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_to_recompute_from_an_input_that_was_changed_is_refused(device):
    model = shifting(True).to(device)
    part = Chunks(model, [blocks_of(model)])
    with pytest.raises(ConfigError, match=r"strategy\.recompute=true: the model changes its input in place"):
        forward(part, 0, torch.zeros(2, FEATURES, device=device), True)


@pytest.mark.parametrize(
    "knobs",
    [{"micro_batches": 10**9}, {"schedule": "interleaved", "chunks": 10**9}, {"schedule": "pipedream_2bw"}],
)
def test_a_schedule_that_would_fill_the_memory_is_refused(knobs):
    with pytest.raises(ConfigError, match=r"strategy\.micro_batches=\d+: makes a schedule of more than 1,048,576"):
        Pipeline(**{"micro_batches": 10**9, **knobs})


def test_the_memory_of_many_micro_batches_is_planned_in_one_pass_over_the_schedule():
    many, begin = 2**15, process_time()
    assert Pipeline(2, micro_batches=many).at_once(0, [7, 5], [3, 1], many) == 5 * many + 2 + 3
    assert process_time() - begin < 10


@pytest.mark.parametrize(
    "read", [deepspeed_settings.read, lambda path: rows_of(path, 2, 4, 1, ())], ids=["config", "schedule"]
)
def test_a_file_that_is_none_is_refused_in_one_sentence(read, tmp_path):
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(ConfigError) as refused:
        read(str(tmp_path / "x.csv"))
    assert str(refused.value).count("strategy.") == 1 and "must be a regular file" in str(refused.value)
