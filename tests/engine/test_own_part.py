"""A worker moves its own part of the model to its device, and frees the parts of others."""

from contextlib import suppress
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from paceline.comm import Comm
from paceline.engine import prepare
from paceline.engine.base.memory import held
from paceline.engine.fabrics.compute import RealCompute
from paceline.engine.planning.build import assemble
from paceline.engine.training.worker import _prepared
from paceline.strategies import torch_fsdp
from paceline.strategies.zero import _CastInTurn

GPU = torch.device("cuda", 0)  # nothing here has one: what is moved to it is noted, and stays
GPT = ("model=gpt", "data=text", "data.context=8", "model.width=16", "model.n_head=2", "model.n_layer=4")
STRATEGIES = {
    "pipeline": 2,
    "tensor": 2,
    "hybrid": 4,
    "torch_tensor": 2,
    "torch_pipelining": 2,
    "deepspeed_pipeline": 2,
}
SLOW = ("torch_tensor", "torch_pipelining", "deepspeed_pipeline")


def set_up(comm: Comm, strategy: str) -> dict[str, Any]:
    """Returns the bytes that were moved to the device, those of this part, and those of the model beside it."""
    tied = [] if strategy == "torch_pipelining" else ["model.tied=true"]
    overrides = ["tracking=none", "hardware.device=cpu", f"hardware.workers={comm.size}", f"strategy={strategy}"]
    parts = assemble(prepare([*overrides, *GPT, *tied, "batch_size=4"]).experiment, ())
    model, moved = parts.make_model(), [0]
    to = nn.Module.to

    def noting(module: nn.Module, *where: Any, **knobs: Any) -> nn.Module:
        if where != (GPU,):
            return to(module, *where, **knobs)
        moved.append(held([*module.parameters(), *module.buffers()]))
        return module

    with patch.object(nn.Module, "to", noting):
        part = _prepared(parts, model, GPU, comm, RealCompute(comm, parts.stragglers), ())
    own = [*part.parameters(), *part.buffers()]
    everything = held([*model.parameters(), *model.buffers(), *own])
    return {"moved": sum(moved), "own": held(own), "others": everything - held(own)}


@pytest.mark.dist
@pytest.mark.parametrize(
    "strategy", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in STRATEGIES]
)
def test_a_worker_moves_its_own_part_alone_and_frees_the_others(workers, strategy):
    for told in workers(STRATEGIES[strategy], set_up, strategy):
        assert told["moved"] == told["own"] > 0
        assert told["others"] == 0


def set_up_fsdp(comm: Comm) -> list[int]:
    """Returns the bytes of whole parameters that there are before each block is cut up, and after the last."""
    overrides = ["tracking=none", "hardware.device=cpu", f"hardware.workers={comm.size}", "strategy=torch_fsdp", *GPT]
    parts = assemble(prepare([*overrides, "batch_size=4"]).experiment, ())
    model, alone = parts.make_model(), comm.split(comm.rank)
    assert alone is not None
    module = _prepared(parts, model, torch.device("cpu"), alone, RealCompute(comm, parts.stragglers), ())
    whole = list(module.parameters())
    found: list[int] = []

    def noting(block: nn.Module, **knobs: Any) -> Any:
        found.append(held(whole))
        return fully_shard(block, **knobs)

    with patch.object(torch_fsdp, "fully_shard", noting):
        parts.sync.prepare(dict(module.named_parameters()), parts.make_optimizer(whole), comm)
    return [*found, held(whole)]


@pytest.mark.dist
def test_fsdp_frees_the_whole_parameters_of_a_block_before_it_takes_the_next(workers):
    for told in workers(2, set_up_fsdp):
        assert len(told) > 4 and told[-1] == 0
        assert all(after < before for before, after in pairwise(told[:-1]))  # the last is the root, with no more


def set_up_zero(comm: Comm) -> list[int]:
    """Returns the bytes of parameters that DeepSpeed's engine is given, and those of the whole model."""
    overrides = ["tracking=none", "hardware.device=cpu", f"hardware.workers={comm.size}", "strategy=zero"]
    parts = assemble(prepare([*overrides, *GPT, "strategy.stage=3", "batch_size=4"]).experiment, ())
    model, alone = parts.make_model(), comm.split(comm.rank)
    assert alone is not None
    module = _prepared(parts, model, torch.device("cpu"), alone, RealCompute(comm, parts.stragglers), ())
    whole = held(module.parameters())
    found: list[int] = []

    def noting(**knobs: Any) -> Any:
        found.append(held(module.parameters()))
        raise KeyboardInterrupt

    optimizer = parts.make_optimizer(module.parameters())
    with patch("deepspeed.initialize", noting), suppress(KeyboardInterrupt):
        parts.sync.prepare(dict(module.named_parameters()), optimizer, comm)
    return [*found, whole]


@pytest.mark.dist
@pytest.mark.slow
def test_zero_cuts_parameters_up_before_deepspeed_moves_the_model(workers):
    for left, whole in workers(2, set_up_zero):
        assert left < whole / 100


def test_zero_casts_a_parameter_when_it_is_its_turn():
    layer = nn.Linear(2, 2)
    next(iter(_CastInTurn(layer, torch.bfloat16).parameters()))
    assert (layer.weight.dtype, layer.bias.dtype) == (torch.bfloat16, torch.float32)
