"""Stages that are cut over tensor workers: against serial training, a pipeline and tensor parallelism, and in bytes."""

from collections import OrderedDict

import pytest
import torch
from oracles import (
    CLASSES,
    FEATURES,
    ROUNDING,
    Case,
    Plan,
    deep64,
    distance,
    identical,
    mlp,
    momentum,
    serial,
    train,
    workers_of,
)
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.exchange.collectives import Fabric, Ring
from paceline.exchange.compress import TopK, WireBFloat16
from paceline.strategies import World
from paceline.strategies.hybrid import Hybrid
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.single import LocalUpdate
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.downpour import Downpour
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.layers import ColumnLinear, RowLinear
from paceline.tasks.models.gpt import TransformerBlock

pytestmark = pytest.mark.dist

SIZES = [[4, 4], [3, 2], [1, 0], [2, 2]]  # two replicas: even, uneven, one without samples, fewer than micro-batches
SCHEDULES = [("naive", None), ("gpipe", None), ("1f1b", None), ("interleaved", 2), ("zb_h1", None)]


def blocks64() -> nn.Sequential:
    """Attention and pairs within layers, a pair between layers, and layers that are whole."""
    return nn.Sequential(
        OrderedDict(
            enter=nn.Linear(FEATURES, 24),
            places=nn.Unflatten(1, (3, 8)),
            block1=TransformerBlock(8, 4, 4, dropout=0.0),
            block2=TransformerBlock(8, 4, 4, dropout=0.0),
            flatten=nn.Flatten(),
            expand=nn.Linear(24, 12),
            relu=nn.ReLU(),
            leave=nn.Linear(12, CLASSES),
        )
    ).double()


def hybrid(stages: int, tensor: int, schedule: str = "gpipe", chunks: int | None = None, **knobs) -> Hybrid:
    return Hybrid(stages, tensor, schedule, 4 if schedule != "interleaved" else 2 * stages, chunks=chunks, **knobs)


def run(workers, strategy, case, sync=None):
    plan = Plan(strategy, sync or BSP(), case)
    return workers(workers_of(plan), train, plan)


def whole_of(results, strategy) -> dict[str, torch.Tensor]:
    """Gathered at one worker of each replica."""
    gathered = [i for i, result in enumerate(results) if result["whole"] is not None]
    assert gathered == list(range(strategy.loss_part, len(results), strategy.parts))
    return results[strategy.loss_part]["whole"]


# -- against serial training


@pytest.mark.budget(1.5)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_two_replicas_of_every_schedule_train_as_one_worker(virtual_workers, schedule, chunks, recompute):
    """2 x 2 x 2: the mean of all samples; and those who hold the same have the same bits."""
    case, strategy = Case(SIZES, model=blocks64), hybrid(2, 2, schedule, chunks, recompute=recompute)
    results = run(virtual_workers, strategy, case)
    assert distance(whole_of(results, strategy), serial(case)) < ROUNDING
    for one, other in zip(results[:4], results[4:], strict=True):
        assert identical(one["weights"], other["weights"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "replicas"), [((2, 2), 1), ((2, 1), 2), ((1, 2), 2)], ids=["1 x 2 x 2", "2 x 2 x 1", "2 x 1 x 2"]
)
def test_four_workers_train_as_one(fabric, shape, replicas):
    case = Case([sizes[:replicas] for sizes in SIZES], model=blocks64)
    strategy = hybrid(shape[0], shape[1], "1f1b")
    results = run(fabric, strategy, case)
    assert distance(whole_of(results, strategy), serial(case)) < ROUNDING
    losses = [result["losses"] for result in results[: strategy.parts]]
    assert all((None in told) == (i != strategy.loss_part) for i, told in enumerate(losses))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 2), (2, 4), (4, 4)], ids=lambda shape: f"{shape[0]} x {shape[1]}")
def test_larger_grids_train_as_one_worker(virtual_workers, shape):
    case, strategy = Case([[6], [5], [3]], model=blocks64), hybrid(shape[0], shape[1], "1f1b", cut="parameters")
    results = run(virtual_workers, strategy, case)
    assert distance(whole_of(results, strategy), serial(case)) < ROUNDING


# -- one axis alone


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_one_tensor_worker_is_the_pipeline_bit_for_bit(virtual_workers, schedule, chunks, recompute):
    case = Case(SIZES, model=blocks64)
    knobs = {"schedule": schedule, "micro_batches": 4, "recompute": recompute, "chunks": chunks}
    plain = run(virtual_workers, Pipeline(2, **knobs), case)
    found = run(virtual_workers, Hybrid(2, 1, **knobs), case)
    for one, other in zip(found, plain, strict=True):
        assert identical(one["weights"], other["weights"]) and one["ledger"] == other["ledger"]
        assert one["losses"] == other["losses"]


@pytest.mark.slow
def test_one_stage_is_tensor_parallelism_bit_for_bit(virtual_workers):
    case = Case(SIZES, model=blocks64)
    found = run(virtual_workers, Hybrid(1, 2, "naive"), case)
    plain = run(virtual_workers, TensorParallel(2), case)
    for one, other in zip(found, plain, strict=True):
        assert identical(one["weights"], other["weights"])
        assert {kind: size for kind, size in one["ledger"].items() if size} == other["ledger"]


def test_one_worker_a_replica_is_gradient_accumulation_bit_for_bit(virtual_workers):
    case = Case([[8], [7], [3]], model=mlp)
    [found] = run(virtual_workers, Hybrid(1, 1), case)
    assert identical(found["weights"], serial(case, pieces=lambda n: min(n, 4)))


# -- what each holds


def test_pieces_are_those_of_each_stage_and_the_rest_is_whole():
    model = blocks64()
    parts = hybrid(2, 2, cut=[4]).split(model)
    assert [name for name, _ in parts[0].named_children()] == ["enter", "places", "block1", "block2"]
    assert isinstance(parts[3].get_submodule("expand"), ColumnLinear)
    assert isinstance(parts[3].get_submodule("leave"), RowLinear)
    assert isinstance(parts[1].get_submodule("enter"), nn.Linear)
    pieces: list[torch.Tensor] = [part.get_parameter("block1.mlp.expand.weight") for part in parts[:2]]
    assert torch.equal(torch.cat(pieces), model.get_parameter("block1.mlp.expand.weight"))


def test_a_pair_that_a_cut_takes_apart_is_whole_and_so_may_a_stage_be():
    parts = hybrid(2, 2, cut=[7]).split(blocks64())
    assert type(parts[0].get_submodule("expand")) is nn.Linear and type(parts[2].get_submodule("leave")) is nn.Linear
    assert not any(isinstance(layer, ColumnLinear) for layer in parts[2].modules())


def test_layers_of_two_chunks_of_a_worker_are_no_pair():
    """Layers 0 and 2 are on worker 0, and 1 is between them."""
    model = nn.Sequential(*list(deep64())[:4], nn.ReLU(), nn.Linear(6, 4))
    parts = Hybrid(2, 2, "interleaved", 2, cut=[1, 2, 3]).split(model)
    cut = [[name for name, layer in part.named_modules() if isinstance(layer, ColumnLinear)] for part in parts]
    assert cut == [[], [], ["3"], ["3"]]


class Traced(nn.Module):
    """Between `first` and `second` is more than a scan of layers would see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.inner = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).softmax(-1))
        for layer in self.inner:
            x = layer(x) + x.flip(0).mean()
        return self.last(x)


def test_a_traced_model_is_cut_within_its_layers_alone(virtual_workers):
    strategy = Hybrid(2, 2, "naive")
    parts = strategy.split(Traced())
    names = [name for part in parts for name, layer in part.named_modules() if isinstance(layer, ColumnLinear)]
    assert set(names) == {"inner.0.0", "inner.1.0"}
    case = Case([[4], [4]], model=lambda: Traced().double())
    results = run(virtual_workers, strategy, case)
    assert distance(whole_of(results, strategy), serial(case)) < ROUNDING


# -- among replicas


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    [BSP(compress=WireBFloat16()), BSP(shard="optimizer"), BSP(shard="gradients"), LocalSGD(2), Gossip()],
    ids=["bf16", "ZeRO-1", "ZeRO-2", "local_sgd", "gossip"],
)
def test_what_is_whole_stays_alike_on_the_workers_of_a_stage(virtual_workers, sync):
    case = Case([[4, 4, 4]] * 4, model=blocks64, optimizer=momentum)
    results = run(virtual_workers, hybrid(2, 2, cut=[4]), case, sync)
    for i in range(0, 12, 2):
        one, other = (results[j]["weights"] for j in (i, i + 1))
        whole = [name for name in one if "norm" in name or name in ("enter.weight", "leave.bias")]
        assert whole and all(torch.equal(one[name], other[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["optimizer", "gradients"])
def test_sharded_updates_are_those_of_whole_ones(virtual_workers, shard):
    case = Case([[4, 4], [3, 2], [2, 2]], model=blocks64)
    strategy = hybrid(2, 2, "1f1b")
    results = run(virtual_workers, strategy, case, BSP(shard=shard))
    assert distance(whole_of(results, strategy), serial(case)) < ROUNDING


@pytest.mark.slow
def test_local_sgd_over_hybrid_replicas_is_that_of_single_workers(virtual_workers):
    case, strategy = Case([[4, 4]] * 6, model=blocks64), hybrid(2, 2)
    results = run(virtual_workers, strategy, case, LocalSGD(3))
    plain = run(virtual_workers, Hybrid(1, 1), case, LocalSGD(3))
    assert distance(whole_of(results, strategy), plain[0]["whole"]) < ROUNDING


def test_a_pipeline_of_whole_stages_takes_what_tensor_workers_refuse(virtual_workers):
    assert (
        not Hybrid(2, 1).shares
        and Hybrid(2, 1).traits.bitwise
        and Hybrid(2, 2).shares
        and not Hybrid(2, 2).traits.bitwise
    )
    case = Case([[4], [3], [1]], model=mlp)
    results = run(virtual_workers, Hybrid(2, 1), case, Downpour())
    plain = run(virtual_workers, Pipeline(2), case, Downpour())
    assert all(identical(one["weights"], other["weights"]) for one, other in zip(results, plain, strict=True))
    case = Case([[4, 4]] * 2, model=mlp)
    run(virtual_workers, Hybrid(2, 1), case, BSP(compress=TopK(0.1)))


# -- bytes


@pytest.mark.parametrize("collective", [Fabric(), Ring()], ids=["fabric", "ring"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_each_rank_sends_what_is_stated_along_each_axis(virtual_workers, schedule, chunks, recompute, collective):
    strategy = hybrid(2, 2, schedule, chunks, recompute=recompute, collective=collective)
    with torch.device("meta"):
        parts = strategy.split(blocks64())
        inputs = torch.empty(7, FEATURES, dtype=torch.float64)
        stated, along = strategy.cost(parts, inputs), strategy.cost_along(parts, inputs)
    results = run(virtual_workers, strategy, Case([[7]] * 3, model=blocks64), LocalUpdate())
    for result, traffic in zip(results, stated, strict=True):
        assert result["ledger"] == {kind: pytest.approx(3 * size) for kind, size in traffic.items()}
    for rank, traffic in enumerate(stated):
        of_axes = [sum(along[axis][rank].values()) for axis in ("stage", "tensor")]
        assert sum(of_axes) == sum(traffic.values()) and min(of_axes) > 0


def test_two_sums_a_pair_and_micro_batch_and_the_output_once_each_way():
    strategy = hybrid(2, 2, cut=[4])
    with torch.device("meta"):
        along = strategy.cost_along(strategy.split(blocks64()), torch.empty(8, FEATURES, dtype=torch.float64))
    rows = 8 * 8 * 3 * 8  # bytes of 8 samples of 3 places of width 8
    assert [sum(each.values()) for each in along["stage"]] == [rows] * 4
    # two blocks of two pairs, forward and backward; and the last pair's outputs and inputs
    once = sum(Fabric().traffic(8.0, World(2)).values()) / 8
    assert [sum(each.values()) for each in along["tensor"]] == pytest.approx(
        [once * 8 * rows] * 2 + [once * 8 * 8 * (CLASSES + 24)] * 2
    )


# -- refused


@pytest.mark.parametrize(
    ("strategy", "model", "says"),
    [
        (Hybrid(2, 3), blocks64, r"strategy.tensor=3 does not divide the 4 keys .*. Choose 2 or 4\.$"),
        (Hybrid(2, 3), mlp, r"strategy.tensor=3: \d+ outputs of the layer . .*, or strategy.tensor=\d"),
        (Hybrid(5, 2), mlp, "have parameters to train. Choose strategy.stages <= "),
        (Hybrid(6, 2), mlp, "strategy.stages=6: the model has 5 layers .* Choose strategy.stages <= 3"),
        (Hybrid(2, 2), lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)), "no stage has two"),
        (Hybrid(2, 2, cut=[3]), lambda: mlp()[2:], "rising layer indices from 1 to 2"),
        (Hybrid(2, 2, cut=[1]), lambda: mlp()[2:], "no stage has two linear layers .* Choose strategy.tensor=1"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_can(strategy, model, says):
    with pytest.raises(ConfigError, match=says) as caught:
        strategy.split(model())
    assert caught.value.exit_code == 2


def test_the_sums_of_each_stage_are_of_what_enters_and_leaves_it():
    how = ["strategy=hybrid", "strategy.stages=3", "strategy.tensor=2", "strategy.cut=[4,8]", "hardware.workers=6"]
    shape = ["model.hidden=[48,40,32,24,16]", "batch_size=8", "strategy.micro_batches=2", "tracking=none"]
    sent = [part.along["tensor"] for part in prepare([*how, *shape]).plan().parts]
    widths = [40, 24 + 40, 10 + 24]  # forward of the outputs, backward of the inputs but for the data
    assert sent[::2] == sent[1::2] == [4 * 8 * width for width in widths]
