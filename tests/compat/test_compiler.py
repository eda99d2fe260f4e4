"""What torch's compiler is used by: whole modules, a clock of compilations, and code of ours that it leaves alone."""

import os
from typing import Any, cast

import pytest
import torch
from torch import nn

from paceline.compat.compiler import CompileClock, compile_in_place, unsupported, usual_folder
from paceline.engine.base import memory

pytestmark = pytest.mark.slow  # it takes seconds to trace anything for the first time


def test_a_sequential_is_one_graph_whose_names_stay_and_whose_compilations_are_timed() -> None:
    torch._dynamo.reset()
    assert unsupported() == ""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(len(graph.graph.find_nodes(op="call_function", target=cast(Any, torch._C)._nn.linear)))
        return graph.forward

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    plain, names = model(torch.ones(3, 4)), model.state_dict().keys()
    clock = CompileClock()
    compile_in_place(model, backend, 1)
    assert clock.seconds == 0
    torch.testing.assert_close(model(torch.ones(3, 4)), plain)
    first = clock.seconds
    model(torch.ones(3, 4))
    assert graphs == [2] and clock.seconds == first > 0 and model.state_dict().keys() == names
    model(torch.ones(5, 4))
    second = clock.seconds
    model(torch.ones(6, 4))
    assert len(graphs) == 2 and clock.seconds == second > first, "from the second size on, code is for any"


def test_torch_names_its_usual_folder_where_none_is_named(monkeypatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # to have it back afterwards
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert cache_dir() == usual_folder() == os.environ["TORCHINDUCTOR_CACHE_DIR"]


def test_keeping_account_of_a_compiled_pass_compiles_nothing_more() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compile_in_place(model, "aot_eager", 1)
    clock = CompileClock()
    model(torch.ones(3, 4)).sum().backward()
    compiled = clock.seconds
    with memory.activations() as account:
        model(torch.ones(3, 4)).sum().backward()
    assert compiled > 0 and clock.seconds == compiled and account.peak > 0
