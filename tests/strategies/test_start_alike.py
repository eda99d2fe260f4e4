"""Replicas begin with the weights of replica 0."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.comm.process import ProcessComm
from paceline.exchange.start_alike import start_alike_on_host


def begin(comm: ProcessComm) -> dict[str, Any]:
    """Returns both weights, and how often each was written to. Only the second one differs among the workers."""
    parameters = {"alike": nn.Parameter(torch.ones(3)), "differs": nn.Parameter(torch.full((2,), float(comm.rank)))}
    before = {name: each._version for name, each in parameters.items()}
    start_alike_on_host(parameters, comm)
    written = {name: each._version - before[name] for name, each in parameters.items()}
    return {"weights": {name: each.detach() for name, each in parameters.items()}, "written": written}


@pytest.mark.dist
def test_on_the_host_only_weights_that_differ_are_written(workers):
    first, second = workers(2, begin)
    for told in (first, second):
        assert told["weights"]["alike"].tolist() == [1, 1, 1] and told["weights"]["differs"].tolist() == [0, 0]
    assert first["written"] == {"alike": 0, "differs": 0} and second["written"] == {"alike": 0, "differs": 1}
