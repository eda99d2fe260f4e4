"""A tensor without memory that refuses to be read or changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor


class Hidden(Tensor):
    """Has the shape, dtype and device of another tensor, and no values: every operation on it raises."""

    # attributes stay readable
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _refuse: Callable[[], NoReturn]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        given = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg])]
        given += (kwargs or {}).values()
        next(each for each in given if isinstance(each, cls))._refuse()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype})"


def hidden(like: Tensor, refuse: Callable[[], NoReturn]) -> Tensor:
    """Returns a stand-in for a tensor like `like`; `refuse` raises what an operation on it raises."""
    found: Any = Tensor._make_wrapper_subclass(Hidden, like.shape, dtype=like.dtype, device=like.device)
    found._refuse = refuse
    return found
