"""Workers that freeze where torch's DistributedDataParallel waits for them by itself."""

import os
import signal

import pytest
import torch
from torch import nn

from paceline.comm import HangError
from paceline.strategies.core.batch import Batch
from paceline.strategies.torch_ddp import TorchDDP

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]
TIMEOUT = 1.0


def freeze_before(comm, frozen_in):
    """Returns what the other worker says of worker 0, which freezes before the set-up or a forward pass."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    strategy, inputs = TorchDDP(), torch.ones(2, 4)
    update = strategy.own_sync()
    strategy.prepare(model, lambda outputs, targets: (outputs - targets).square().sum(), comm, lambda first, last: None)

    def begin() -> None:
        update.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)

    def step() -> None:
        strategy.forward_backward(Batch(inputs, inputs, total=4))

    calls = {"set-up": [begin], "forward": [begin, step, step]}[frozen_in]
    for call in calls[:-1]:
        call()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        calls[-1]()
    except HangError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("frozen_in", ["set-up", "forward"])
def test_a_worker_that_freezes_before_ddp_waits_for_it_is_named(workers, frozen_in: str) -> None:
    said = workers(2, freeze_before, frozen_in, timeout=TIMEOUT, lost=[0])[1]
    assert said.startswith(f"worker 1 waited {TIMEOUT:g} s in DistributedDataParallel of world")
    assert "worker 0 (last" in said
