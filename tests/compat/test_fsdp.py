"""What is read of the groups of parameters that torch's FSDP2 keeps."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.compat.fsdp import held_by, whole_parameters

pytestmark = [pytest.mark.dist, pytest.mark.filterwarnings("ignore::FutureWarning")]
ENTRIES = 4 * 6 + 4


def one_step(comm: Any) -> dict[str, list[int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from paceline.comm.torch_world import torch_world

    torch_world(comm)
    module = nn.Linear(6, 4)
    fully_shard(module, mesh=init_device_mesh("cpu", (comm.size,)), reshard_after_forward=False)
    module(torch.ones(2, 6)).sum().backward()
    held = held_by(module)
    return {
        "sharded": [tensor.numel() for tensor in held.sharded],
        "gradients": [tensor.grad.numel() for tensor in held.trained if tensor.grad is not None],
        "whole": [tensor.numel() for tensor in whole_parameters(module)],
        "buffers": [tensor.numel() for tensor in held.buffers],
    }


def test_rows_gradients_whole_parameters_and_buffers_are_found(workers: Any) -> None:
    for found in workers(2, one_step):
        assert sum(found["sharded"]) == ENTRIES // 2, "a replica's rows are not found: parameters are miscounted"
        assert sum(found["gradients"]) == ENTRIES, "FSDP's gradients are not found, or are of other sizes than rows"
        assert sum(found["whole"]) == ENTRIES, "what FSDP gathered is not found: gradients are not counted"
        assert sum(found["buffers"]) >= ENTRIES, "FSDP's buffers of gathering are not found: they are not counted"
