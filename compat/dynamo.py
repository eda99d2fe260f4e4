"""Planning and training without torch's compiler, whose import takes as long as that of torch itself.

torch keeps methods of its optimizers, dispatch modes and decompositions out of torch.compile (torch._disable_dynamo).
The first call of any imports torch._dynamo and asks it for the method to call (`disable`); an optimizer's step tells it
where a compiled graph must end (`graph_break`). Where nothing is compiled, the method stays as it is and no graph ends.
A checkpointed layer keeps hooks of its passes out, too, and reads a setting of its traces, which it hands on to them
alone (`config.error_on_nested_fx_trace`).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

DYNAMO, CHECKPOINT = "torch._dynamo", "torch.utils.checkpoint"
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
        self.config = _CompilerConfig(self)

    def disable(
        self,
        fn: Callable[..., Any] | None = None,
        recursive: bool = True,
        *,
        reason: str | None = None,
        wrapping: bool = True,
    ) -> Any:
        if getattr(fn, "__module__", None) == CHECKPOINT:  # hooks of one pass, which are gone after it
            return fn
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


class _CompilerConfig:
    """The one setting that is read where nothing is compiled; all others are those of the real one."""

    error_on_nested_fx_trace = True

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stand_in._real().config, name)
