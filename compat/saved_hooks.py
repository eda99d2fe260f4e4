"""torch's hooks for saved tensors (torch.autograd.graph.saved_tensors_hooks), put aside for a while."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_STACK: Any = getattr(torch._C, "_autograd")  # noqa: B009  # its stubs lack it


def without_saved_hooks(do: Callable[[], T]) -> T:
    """Does `do` while no such hooks are active.

    Work of gloo keeps the active hooks, and a thread of torch lets go of them as the work ends. If the interpreter is
    at its end by then, this thread aborts the process (exit status 134, pytorch #38228).
    """
    hooks = []
    while (top := _STACK._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _STACK._pop_saved_tensors_default_hooks()
    try:
        return do()
    finally:
        for pack, unpack in reversed(hooks):
            _STACK._push_saved_tensors_default_hooks(pack, unpack)
