"""What is called and read of torch.distributed.pipelining."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.compat.torch_pipelining import receive_buffers, start

pytestmark = pytest.mark.dist


def one_step(comm: Any) -> dict[str, Any]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    from paceline.comm.torch_world import torch_world

    torch_world(comm)
    flowing = [torch.empty(2, size, device="meta", requires_grad=size != 3) for size in (3, 4, 5)]
    own = flowing[comm.rank], flowing[comm.rank + 1]
    stage = PipelineStage(nn.Linear(3 + comm.rank, 4 + comm.rank), comm.rank, 2, torch.device("cpu"), *own)
    schedule = ScheduleGPipe(stage, 3, F.mse_loss, scale_grads=False)
    inputs, targets = [[torch.ones(6, 3)], []][comm.rank], [None, torch.ones(6, 5)][comm.rank]
    start(schedule, [stage], inputs, targets)
    before = dict(comm.ledger.bytes)
    room = [tensor.shape for tensor in receive_buffers(stage)]
    schedule.step(*inputs, target=targets, return_outputs=False)
    assert [tensor.shape for tensor in receive_buffers(stage)] == room
    return {"room": room, "sent": int(comm.ledger.bytes["send"] - before.get("send", 0))}


def test_after_the_start_a_step_sends_activations_and_gradients_alone(workers: Any) -> None:
    for found in workers(2, one_step):
        assert found["room"] == [[2, 4]] * 3, "torch's receive buffers are not found: buffers are miscounted"
        assert found["sent"] == 3 * 2 * 4 * 4, "torch votes in the first step: its bytes would be counted"
