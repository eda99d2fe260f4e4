"""Schedules without a flush over stages of several workers: their recursions, their versions and their bytes."""

from typing import Any

import pytest
import torch
from oracles import ROUNDING, Case, Plan, distance, identical, train, workers_of
from tensor_cases import Tokens, make, tokens
from test_pipedream import CUTS, FEATURES, HOW, recursion
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.strategies.hybrid import Hybrid
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.bsp import BSP

pytestmark = pytest.mark.dist


def paired() -> nn.Sequential:
    """Four layers: two pairs, a norm, and an end that is whole."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8)),
        nn.LayerNorm(8),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
        nn.Linear(8, 4),
    ).double()


SIZES = [[4, 4], [3, 2], [4, 4], [1, 0], [2, 2], [0, 1], [4, 4]]


def strategy_of(stages: int, tensor: int, how: tuple[str, bool], micro_batches: int = 2, **knobs: Any) -> Hybrid:
    schedule, vertical = how
    return Hybrid(stages, tensor, schedule, micro_batches, CUTS[stages], vertical_sync=vertical, **knobs)


def run(workers, strategy, case) -> list[dict]:
    plan = Plan(strategy, BSP(), case)
    return workers(workers_of(plan), train, plan)


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how[0]}{' vertical' * how[1]}")
def test_two_replicas_are_the_delayed_recursion_and_each_piece_has_its_versions(virtual_workers, how, stages):
    """2 x 2 x 2, and batches that reach one replica alone."""
    case, strategy = Case(SIZES, model=paired), strategy_of(stages, 2, how)
    results = run(virtual_workers, strategy, case)
    micro_batches = 1 if how[0] == "pipedream" else 2
    whole = results[strategy.loss_part]["whole"]
    assert distance(whole, recursion(case, stages, HOW[how], micro_batches)) < ROUNDING
    assert distance(whole, recursion(case, stages, lambda t, i, p: t, micro_batches)) > 1e-4
    for one, other in zip(results[: strategy.parts], results[strategy.parts :], strict=True):
        assert identical(one["weights"], other["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how[0]}{' vertical' * how[1]}")
@pytest.mark.parametrize("tensor", [1, 2])
def test_four_workers_are_the_delayed_recursion(fabric, how, tensor):
    """2 x 2 x 1, or 1 x 2 x 2."""
    case = Case([sizes[: 3 - tensor] for sizes in SIZES if sizes[0]], model=paired)
    strategy = strategy_of(2, tensor, how, recompute=True)
    results = run(fabric, strategy, case)
    micro_batches = 1 if how[0] == "pipedream" else 2
    assert distance(results[strategy.loss_part]["whole"], recursion(case, 2, HOW[how], micro_batches)) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how[0]}{' vertical' * how[1]}")
def test_one_tensor_worker_is_the_pipeline_bit_for_bit(virtual_workers, how):
    case, (schedule, vertical) = Case(SIZES, model=paired), how
    plain = run(virtual_workers, Pipeline(3, schedule, 2, CUTS[3], vertical_sync=vertical), case)
    found = run(virtual_workers, strategy_of(3, 1, how), case)
    for one, other in zip(found, plain, strict=True):
        assert identical(one["weights"], other["weights"]) and one["ledger"] == other["ledger"]


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True], ids=["", "slices"])
@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how[0]}{' vertical' * how[1]}")
def test_a_gpt_in_pieces_is_trained_as_by_the_pipeline(virtual_workers, how, sequence):
    case, (schedule, vertical) = Tokens([[4]] * 5, model=make(), optimizer=tokens().optimizer), how
    plain = run(virtual_workers, Pipeline(2, schedule, 2, [2], vertical_sync=vertical), case)
    strategy = strategy_of(2, 2, how, vocabulary=True, sequence=sequence)
    found = run(virtual_workers, strategy, case)
    assert distance(found[strategy.loss_part]["whole"], plain[1]["whole"]) < ROUNDING


@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how[0]}{' vertical' * how[1]}")
def test_bytes_and_versions_are_those_stated(virtual_workers, how):
    strategy, case = strategy_of(3, 2, how, 4), Case([[8]] * 7, model=paired)
    with torch.device("meta"):
        parts = strategy.split(paired())
        stated = strategy.cost(parts, torch.empty(8, FEATURES, dtype=torch.float64))
    results = run(virtual_workers, strategy, case)
    for result, traffic in zip(results, stated, strict=True):
        assert result["ledger"] == {kind: pytest.approx(7 * size) for kind, size in traffic.items()}
    of_stage = {("pipedream", False): [3, 2, 1], ("pipedream", True): [3, 3, 3], ("pipedream_2bw", False): [2, 2, 2]}
    nothing = {"parameters": 0}
    for rank, part in enumerate(parts):
        held = sum(weight.numel() * 8 for weight in part.parameters())
        older = strategy.memory(nothing, part)["parameters"]
        assert older == (of_stage[how][rank // 2] - 1) * held


def test_tied_weights_of_two_stages_are_refused_for_updates_that_do_not_wait():
    with pytest.raises(ConfigError, match=r"two stages share a parameter .* a schedule with a flush, such as 1f1b"):
        Hybrid(2, 2, "pipedream", cut=[2], vocabulary=True).split(make(tied=True)())
