"""Passes and modes that a thread is in are seen, and nothing else is."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from paceline.compat.dispatch import TorchDispatchMode
from paceline.compat.passes import is_within_pass


def test_a_backward_pass_is_seen_in_its_hooks_and_not_before_or_after() -> None:
    seen: list[bool] = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _: seen.append(is_within_pass()))
    loss = (weight * 2).sum()
    seen.append(is_within_pass())
    loss.backward()
    assert [*seen, is_within_pass()] == [False, True, False]


@pytest.mark.parametrize(
    ("mode", "within"),
    [
        (nullcontext(), False),
        (torch.no_grad(), False),
        (torch.autocast("cpu"), True),
        (torch.inference_mode(), True),
        (TorchDispatchMode(), True),
        (TorchFunctionMode(), True),
    ],
    ids=lambda each: type(each).__name__,
)
def test_modes_that_a_thread_keeps_are_seen(mode: AbstractContextManager[Any], within: bool) -> None:
    with mode:
        assert is_within_pass() == within
    assert not is_within_pass()
