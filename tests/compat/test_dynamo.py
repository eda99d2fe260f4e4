"""A plan is the same with torch's compiler and without it, and leaves nothing behind."""

import subprocess
import sys

import pytest

from paceline.compat.dynamo import _StandIn

PLANNED = """
import sys
{before}
from paceline import engine
plan = engine.prepare({overrides!r}).plan()
print(plan.as_dict() | {{"parts": plan.parts}})
print("torch._dynamo" in sys.modules, file=sys.stderr)
"""
USED = """
import sys, torch
from paceline.compat.dynamo import without_dynamo

with without_dynamo():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    method = torch.optim.Optimizer.add_param_group.__wrapped__
    assert "__dynamo_disable" in vars(method) and type(sys.modules["torch._dynamo"]).__name__ == "_StandIn"
    {then}
assert "__dynamo_disable" not in vars(method), "torch asks again"
optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.ones(1))]}})
import torch._dynamo
assert torch._dynamo.__file__ and vars(method)["__dynamo_disable"] is not method
"""


def test_an_import_in_between_that_looks_for_its_source_does_not_import_the_compiler() -> None:
    stand_in = _StandIn("torch._dynamo")
    assert not hasattr(stand_in, "__file__"), "as inspect.getmodule asks of every module"


def test_a_checkpointed_layer_reads_its_setting_and_others_are_the_real_ones() -> None:
    import torch._dynamo

    stand_in = _StandIn("torch._dynamo")
    assert stand_in.config.error_on_nested_fx_trace is torch._dynamo.config.error_on_nested_fx_trace
    assert stand_in.config.recompile_limit == torch._dynamo.config.recompile_limit


def ran(code: str) -> subprocess.CompletedProcess[str]:
    """In a process that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=cnn", "strategy=pipeline", "optimizer=adam"],
        ["model=gpt", "data=text"],
        ["model=gpt", "data=text", "model.recompute=true"],
    ],
    ids=" ".join,
)
def test_a_plan_is_the_same_with_and_without_torchs_compiler(overrides: list[str]) -> None:
    plain = ran(PLANNED.format(before="", overrides=overrides))
    compiling = ran(PLANNED.format(before="import torch._dynamo", overrides=overrides))
    assert (plain.stderr.split()[-1], compiling.stderr.split()[-1]) == ("False", "True")
    assert plain.stdout == compiling.stdout and "parameters" in plain.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).sum() == 4",
        "import torch._dynamo.config; assert torch._dynamo.config.recompile_limit",
        "assert torch._dynamo.config.recompile_limit; assert hasattr(sys.modules['torch._dynamo'], 'optimize')",
        "assert torch.compiler.disable(lambda: 5)() == 5 and hasattr(sys.modules['torch._dynamo'], 'optimize')",
    ],
)
def test_whoever_asks_for_more_gets_torchs_own_and_nothing_is_left_behind(then: str) -> None:
    ran(USED.format(then=then))
