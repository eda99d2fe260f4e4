"""What torch.utils.checkpoint saves and computes again."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from paceline.compat import checkpointing


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What the hooks of both passes were asked, by hooks of ours; torch's come back after the test."""
    before = first, second = checkpointing.hooks()
    seen: list[str] = []

    class First(first):
        def __init__(self, frame: Any) -> None:
            super().__init__(frame)
            frame.ours = "ours"

    class Second(second):
        def __init__(self, frame: Any, gid: Any) -> None:
            super().__init__(frame, gid)
            seen.append(frame().ours)
            theirs = self.pack_hook

            def pack(tensor: Tensor) -> Any:  # a function: torch 2.15 hangs an attribute on it
                seen.append("saved again")
                return theirs(tensor)

            self.pack_hook = pack

    checkpointing.set_hooks(First, Second)
    yield seen
    checkpointing.set_hooks(*before)


def layer(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * 2


def test_what_is_computed_again_passes_our_hooks(seen: list[str]) -> None:
    x = torch.ones(3, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert seen[:2] == ["ours", "saved again"], (
        "torch.utils.checkpoint takes other hooks: activations that are computed again are not counted"
    )
    assert x.grad is not None


class Noting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


def test_a_mode_holds_for_what_backward_computes_again() -> None:
    x = torch.ones(3, requires_grad=True)
    with Noting() as noting:
        loss = checkpoint(layer, x, use_reentrant=False).sum()
        noting.called.clear()
        checkpointing.backward(loss)
    assert torch.sigmoid in noting.called, (
        "torch's backward pass suspends modes: attention that is computed again is planned for as if it were not fused"
    )
    assert x.grad is not None


def test_what_is_to_be_computed_again_is_met() -> None:
    x = torch.ones(3, requires_grad=True)
    with checkpointing.met() as outer:
        layer(x)
        assert outer == []
        with checkpointing.met() as inner:
            checkpoint(layer, x, use_reentrant=False).sum().backward()
        assert len(inner) == 1 and outer == [], "torch.utils.checkpoint takes other hooks"
        with torch.no_grad():
            checkpoint(layer, x, use_reentrant=False)
        assert outer == []
    checkpoint(layer, x, use_reentrant=False)
    assert len(inner) == 1
