"""Weights that the first and the last stage share: copies stay alike, and train as one weight does serially."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from oracles import CLASSES, FEATURES, ROUNDING, Case, Plan, distance, identical, serial, train, workers_of
from torch import Tensor, nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base.checkpoint import read_parameters
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.single import LocalUpdate
from paceline.strategies.sync.bsp import BSP

SHARED = "0.weight"


class Transposed(nn.Module):
    """[n, rows of the weight] -> [n, columns]."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def tied() -> nn.Sequential:
    """The last layer's weight is the first one's."""
    first = nn.Linear(FEATURES, 8)
    inner = [nn.Sequential(nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)]
    return nn.Sequential(first, *inner, Transposed(first.get_parameter("weight")))


def tied64() -> nn.Sequential:
    return tied().double()


class Repeated(nn.Module):
    """Two stages share a whole layer."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(FEATURES, FEATURES)
        self.layers = nn.ModuleList([layer, nn.Linear(FEATURES, FEATURES), layer])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(torch.tanh(x))
        return x


class Table(nn.Module):
    """Adds a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.get_buffer("table")


def sharing_a_table() -> nn.Sequential:
    """Two stages share a layer without parameters to train."""
    table = Table()
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), table, nn.Linear(FEATURES, FEATURES), table)


def run(workers, strategy, case, sync=None):
    plan = Plan(strategy, sync or BSP(), case)
    results = workers(workers_of(plan), train, plan)
    return results, {name: w for stage in results[: strategy.parts] for name, w in stage["weights"].items()}


SIZES = [[8], [7], [5], [1], [8]]
SCHEDULES = [("gpipe", None), ("1f1b", None), ("interleaved", 2), ("zb_h1", None), ("zb_v", 2)]


@pytest.mark.dist
@pytest.mark.parametrize(("model", "cut"), [(tied, [1, 2]), (tied, [2]), (Repeated, [2, 4]), (Repeated, [2])])
def test_with_one_micro_batch_it_is_serial_training_bit_for_bit(fabric, model, cut):
    case = Case(SIZES, model=model)
    results, whole = run(fabric, Pipeline(len(cut) + 1, "naive", cut=cut), case)
    assert identical(whole, serial(case))
    gathered = results[-1]["whole"]
    assert identical(gathered, whole) and gathered.keys() == dict(case.start().named_parameters()).keys()


@pytest.mark.dist
def test_a_layer_without_parameters_that_stages_share_keeps_its_data(virtual_workers):
    case = Case(SIZES, model=sharing_a_table)
    _, whole = run(virtual_workers, Pipeline(2, "naive", cut=[2]), case)
    assert identical(whole, serial(case))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_every_schedule_accumulates_as_serial_training_and_copies_are_alike_after_every_step(
    fabric, schedule, chunks, recompute
):
    case = Case(SIZES, model=tied64)
    strategy = Pipeline(2, schedule, 4, [1, 2, 3] if chunks else [2], recompute, chunks)
    results, whole = run(fabric, strategy, case)
    assert distance(whole, serial(case, pieces=lambda n: min(n, 4))) < ROUNDING
    for first, last in zip(results[0]["trajectory"], results[1]["trajectory"], strict=True):
        if schedule == "zb_v":  # which has the first and the last stage on one worker
            assert SHARED in first and SHARED not in last
        else:
            assert torch.equal(first[SHARED], last[SHARED])


def transposed64() -> nn.Sequential:
    model = tied64()
    shared = model.get_parameter(SHARED)
    shared.data = shared.detach().t().contiguous().t()
    return model


def test_a_fused_optimizer_takes_the_sum_for_a_weight_that_is_transposed_in_memory(virtual_workers: Any) -> None:
    case = Case([[4]] * 3, model=transposed64, optimizer=lambda its: torch.optim.AdamW(its, lr=0.05, fused=True))
    _, whole = run(virtual_workers, Pipeline(2, "gpipe", 2, cut=[2]), case)
    assert distance(whole, serial(case)) < ROUNDING


class LookedUp(nn.Module):
    """[n, features] -> [n, 8]: the sum of rows, with a sparse gradient."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding((x > 0).long(), self.weight, sparse=True).sum(1)


def looked_up64() -> nn.Sequential:
    weight = nn.Parameter(torch.randn(CLASSES, 8).double())
    inner = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES, bias=False)
    model = nn.Sequential(LookedUp(weight), *inner).double()
    model[3].weight = weight
    return model


def test_the_sparse_gradient_of_an_embedding_is_summed_with_the_dense_one_of_a_head(virtual_workers: Any) -> None:
    case = Case([[4]] * 3, model=looked_up64)
    _, whole = run(virtual_workers, Pipeline(2, "gpipe", 2, cut=[1]), case)
    assert distance(whole, serial(case)) < ROUNDING


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("sync", [BSP(), BSP(bucket_mb=1e-4, first_bucket_mb=1e-4), BSP(find_unused=True)])
@pytest.mark.parametrize("sizes", [[[4, 4], [3, 2], [1, 0], [2, 2]], [[2, 2, 2], [2, 1, 2], [2, 2, 2]]])
def test_replicas_equal_serial_training_and_all_copies_are_alike(virtual_workers, sync, sizes):
    case = Case(sizes, model=tied64)
    results, whole = run(virtual_workers, Pipeline(2, "1f1b", 2, cut=[2]), case, sync)
    assert distance(whole, serial(case)) < ROUNDING
    assert all(torch.equal(results[0]["weights"][SHARED], each["weights"][SHARED]) for each in results)


@pytest.mark.slow
@pytest.mark.dist
def test_bytes_are_those_stated(fabric):
    """Each sends the weight once, in a sum of two."""
    case, strategy = Case([[8]] * 3, model=tied), Pipeline(3, "1f1b", 4, cut=[1, 2])
    with torch.device("meta"):
        stated = strategy.cost(strategy.split(tied()), torch.empty(8, FEATURES))
    results, _ = run(fabric, strategy, case, LocalUpdate())
    for i, (result, traffic) in enumerate(zip(results, stated, strict=True)):
        assert {name: n for name, n in result["ledger"].items() if n} == {name: 3 * n for name, n in traffic.items()}
        assert traffic.get("all_reduce", 0) == (0 if i == 1 else 4 * 8 * FEATURES)


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_without_a_flush_it_is_refused(schedule):
    with pytest.raises(ConfigError, match=r"share a parameter \(tied weights\).* without a flush .* such as 1f1b"):
        Pipeline(2, schedule, cut=[2]).split(tied())


# -- whole runs

GPT = [
    "strategy=pipeline",
    "model=gpt",
    "model.tied=true",
    "model.n_layer=2",
    "model.width=32",
    "data=text",
    "data.limit=32",
    "batch_size=8",
    "steps=4",
    "epochs=9",
    "tracking=none",
    "optimizer=adam",
    "hardware.device=cpu",
    "hardware.threads=1",
]


@pytest.mark.slow
@pytest.mark.dist
def test_a_tied_gpt_is_saved_once_and_goes_on_bit_for_bit(tmp_path: Path, fork_server: None) -> None:
    def finish(*overrides: str, **how: Any):
        result = engine.run(list(overrides), root=tmp_path, quiet=True, **how)
        assert result is not None
        return result, safetensors.torch.load_file(result.path / "model.safetensors")

    how = [*GPT, "checkpoint.every_steps=2"]
    result, straight = finish(*how, "name=straight")
    assert result.summary["wire"]["bytes_per_step"] == result.summary["predicted"]["bytes_per_step"]
    assert result.summary["memory"]["parameters"] == result.summary["predicted"]["memory"]["parameters"]
    finish(*how, "name=half", "steps=2")
    resumed, again = finish("steps=4", resume="half")
    assert identical(straight, again)
    assert "embedding.token.weight" in straight and "head.weight" not in straight
    saved = read_parameters(sorted((resumed.path / "checkpoints").iterdir())[-1])
    assert identical(saved, straight)


@pytest.mark.slow
def test_sync_modes_that_would_part_the_copies_are_refused() -> None:
    for sync, says in {
        "sync=asp": "would drift apart",
        "compress=topk": "strategy=pipeline: holds some parameters whole on several workers of",
    }.items():
        with pytest.raises(Exception, match=says) as caught:
            engine.prepare([*GPT, sync, "hardware.workers=4"]).plan()
        assert getattr(caught.value, "exit_code", None) == 2
    engine.prepare([*GPT, "sync=local_sgd", "hardware.workers=4"]).plan()


@pytest.mark.slow
def test_a_plan_counts_a_shared_weight_once() -> None:
    plan = engine.prepare(GPT).plan()
    whole = engine.prepare([*GPT, "strategy=data_parallel"]).plan()
    assert sum(part.own for part in plan.parts) == whole.parts[0].parameters
    assert sum(part.parameters for part in plan.parts) > whole.parts[0].parameters
