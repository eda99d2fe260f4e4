"""Planning without torch's compiler, whose import takes as long as that of torch itself.

torch keeps methods of its optimizers, dispatch modes and decompositions out of torch.compile (torch._disable_dynamo).
The first call of any imports torch._dynamo and asks it for the method to call (`disable`); an optimizer's step tells it
where a compiled graph must end (`graph_break`). Where nothing is compiled, the method stays as it is and no graph ends.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

DYNAMO = "torch._dynamo"
ANSWER = "__dynamo_disable"  # where torch keeps, on each such method, what it was given


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Meanwhile torch._dynamo is a stand-in, unless it was imported before. It leaves nothing behind, and makes way for
    the real one as soon as anybody asks for more, such as a model that calls torch.compile.
    """
    if DYNAMO in sys.modules:
        yield
        return
    stand_in = _StandIn(DYNAMO)
    sys.modules[DYNAMO] = stand_in
    try:
        yield
    finally:
        stand_in.leave()


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._asked: list[Callable[..., Any]] = []

    def disable(
        self,
        fn: Callable[..., Any] | None = None,
        recursive: bool = True,
        *,
        reason: str | None = None,
        wrapping: bool = True,
    ) -> Any:
        if fn is None or wrapping:  # not torch for its own methods: a user's torch.compiler.disable
            return self._real().disable(fn, recursive, reason=reason, wrapping=wrapping)
        self._asked.append(fn)
        return fn

    def graph_break(self, msg: str = "") -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module for it, also in the middle of an import
            raise AttributeError(name)
        return getattr(self._real(), name)

    def leave(self) -> None:
        if sys.modules.get(DYNAMO) is self:
            del sys.modules[DYNAMO]
        for fn in self._asked:
            with suppress(AttributeError):
                delattr(fn, ANSWER)
        self._asked.clear()

    def _real(self) -> Any:
        self.leave()
        return import_module(DYNAMO)
