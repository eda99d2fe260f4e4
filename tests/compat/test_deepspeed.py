"""What is read of DeepSpeed's optimizers at each stage: a guess there is a wrong state, and no crash."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.compat.deepspeed import held_by, is_cut_up, optimizer_state, place_of
from paceline.strategies.core.batch import Batch
from paceline.strategies.precision import BFloat16
from paceline.strategies.zero import Zero

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(300)]
ENTRIES = 7 * 4 + 4 + 4 * 2 + 2


def one_step(comm: Any, stage: Any, precision: Any) -> dict[str, Any]:
    """Before a step, whether each piece is where it is said to be; after it, how much there is of each kind."""
    strategy = Zero(stage=stage, precision=BFloat16() if precision == "bf16" else None)
    torch.manual_seed(0)
    (model,) = strategy.split(nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 2)))
    weights = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}
    strategy.prepare(model, nn.functional.mse_loss, comm, lambda roots, last: None)
    sync = strategy.own_sync()
    sync.prepare(dict(model.named_parameters()), torch.optim.Adam(model.parameters()), comm)

    def place(parameter: nn.Parameter) -> tuple[Tensor, Tensor, Any]:
        zero = strategy.engine.optimizer
        flat, own, piece = place_of(parameter, zero, sync.optimizer, stage, precision == "fp32", comm.rank)
        return flat, own.of(flat.detach()).float(), piece

    placed = {name: place(parameter) for name, parameter in model.named_parameters()}
    wrong = [name for name, (_, own, piece) in placed.items() if not torch.equal(own, piece.of(weights[name]))]
    owned = sum(len(own) for _, own, _ in placed.values())
    strategy.forward_backward(Batch(torch.ones(3, 7), torch.zeros(3, 2), total=3 * comm.size))
    held = held_by(strategy.engine, model, stage, precision == "fp32")
    kinds = {**held._asdict(), "state": [t for t in optimizer_state(strategy.engine) if t.dim() > 0]}
    return {
        "peak": dict(strategy.account.peak),  # while gradients came
        "wrong": wrong,
        "owned": owned,
        "cut up": [is_cut_up(parameter) for parameter in model.parameters()],
        "entries": {kind: sum(tensor.numel() for tensor in tensors) for kind, tensors in kinds.items()},
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_piece_of_the_state_is_where_it_is_said_to_be(workers: Any, stage: int, precision: str) -> None:
    found = workers(2, one_step, stage, precision, patience=120.0, timeout=60.0)
    copies = 1 if stage == 0 else 2
    for each in found:
        assert each["wrong"] == [], "a parameter's fp32 weights lie elsewhere: checkpoints would be wrong"
        assert all(cut_up == (stage == 3) for cut_up in each["cut up"]), "which parameters are cut up is told wrongly"
        entries = each["entries"]
        share = ENTRIES // copies
        if stage > 0 or precision == "bf16":
            assert share <= entries["copies"] <= share + 8, "fp32 copies of the weights are not found: memory is wrong"
        assert 2 * share <= entries["state"] <= 2 * (share + 8), "Adam's moments are not found: memory is wrong"
        assert (each["peak"]["buffers"] > 0) == (stage > 0), "the buckets of gradients are not found: memory is wrong"
        expected = ENTRIES if stage < 3 else share
        assert expected <= entries["parameters"] <= expected + 8, "the parameters held are not found: memory is wrong"
    owned = sum(each["owned"] for each in found)
    assert owned == ENTRIES * (2 if stage == 0 else 1), "entries of DeepSpeed's state are nobody's, or two replicas'"
