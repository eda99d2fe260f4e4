"""What is set and read of DeepSpeed's PipelineEngine."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.compat.deepspeed_pipeline import after_each_instruction, expect, held_between
from paceline.strategies.external.deepspeed_stages import Stages

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(300)]


def two_steps(comm: Any) -> dict[str, Any]:
    from paceline.comm.torch_world import torch_world

    torch_world(comm)
    part = nn.Linear(3 + comm.rank, 4 + comm.rank)
    stages = Stages(part, 2, [], 3, F.mse_loss, torch.optim.SGD(part.parameters(), lr=0.1), comm)
    inputs, targets = [torch.ones(2, 3)] * 3, [torch.ones(2, 5)] * 3
    entering = torch.empty(2, 3 + comm.rank, device="meta")
    before = dict(comm.ledger.bytes)
    seen: list[list[list[int]]] = []
    after_each_instruction(
        stages.engine, lambda: seen.append([list(each.shape) for each in held_between(stages.engine)])
    )
    stages.train(inputs, targets, entering, 1.0)
    sent = int(comm.ledger.bytes["send"] - before.get("send", 0))
    expect(stages.engine, None if comm.rank == 0 else torch.empty(2, 4))
    stages.train(inputs, targets, entering, 1.0)
    both = int(comm.ledger.bytes["send"] - before.get("send", 0))
    return {
        "held": seen,
        "sent": sent,
        "both": both,
        "kept": [list(each.shape) for each in held_between(stages.engine)],
    }


def test_no_shape_is_sent_and_what_is_held_is_seen_after_each_instruction(workers: Any) -> None:
    first, last = workers(2, two_steps, patience=120.0, timeout=60.0)
    for found in (first, last):
        assert found["sent"] == 3 * 2 * 4 * 4, "DeepSpeed sends shapes ahead: its bytes are not the stated ones"
        assert found["both"] == 2 * found["sent"]
    # of 3 micro-batches: load, forward, send, receive, backward; two sums and the update
    assert len(first["held"]) == 2 * (3 * 5 + 3), "DeepSpeed's schedule has other instructions: memory is miscounted"
    assert len(last["held"]) == 2 * (3 * 5 + 3)
    most = max(first["held"], key=len)
    assert sorted(most) == [[2, 3]] * 2 + [[2, 4]] * 3, "the first stage's buffers are not found: memory is miscounted"
    most = max(last["held"], key=len)
    assert sorted(most) == [[2, 4]] * 3 + [[2, 5]] * 2, "the last stage's buffers are not found: memory is miscounted"
    assert sorted(first["kept"]) == [[2, 3]] * 2 + [[2, 4]]
    assert sorted(last["kept"]) == [[2, 4]] + [[2, 5]] * 2
