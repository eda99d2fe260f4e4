"""The hooks of torch.utils.checkpoint, by which it saves and recomputes, and a backward pass that leaves our modes in
force.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.utils import checkpoint


def hooks() -> tuple[type[Any], type[Any]]:
    """The saved-tensor hooks of the first pass, made with a frame, and of the second, made with a weak reference to it
    and an id; the second one's `pack_hook` is called with each tensor that is saved again.
    """
    return checkpoint._checkpoint_hook, checkpoint._recomputation_hook


def set_hooks(first: type[Any], second: type[Any]) -> None:
    """Sets the hooks for the whole process."""
    checkpoint._checkpoint_hook, checkpoint._recomputation_hook = first, second


_met: ContextVar[list[str] | None] = ContextVar("met", default=None)  # in this thread


@contextmanager
def met() -> Iterator[list[str]]:
    """The functions that are called within to be computed again later, by their names."""
    _note_what_is_met()
    found: list[str] = []
    token = _met.set(found)
    try:
        yield found
    finally:
        _met.reset(token)


@cache
def _note_what_is_met() -> None:
    first, second = hooks()

    class First(first):
        def __init__(self, frame: Any) -> None:
            super().__init__(frame)
            found = _met.get()
            if found is not None:
                found.append(frame.recompute_fn.__qualname__)

    set_hooks(First, second)


def backward(root: Tensor, gradient: Tensor | None = None, inputs: Sequence[Tensor] = ()) -> None:
    """Runs a backward pass in which a TorchFunctionMode holds for recomputation; torch's own entry points suspend it.

    `gradient`: None where its numbers do not count. `inputs`: whose gradients are wanted; () for those of all leaves.
    """
    first = torch.empty_like(root) if gradient is None else gradient
    _engine_run_backward((root,), (first,), False, False, tuple(inputs), True, True)
