"""torch.compile of a module in its place, and the private parts of torch that this needs.

`nn.Module.compile` compiles the call of the module and changes no name in it. torch skips its own classes, such as
nn.Sequential, unless `wrap_top_frame` is set: layers would be compiled one by one. `torch._dynamo.callback` tells when
a compilation begins and ends, those of backward passes and of later input shapes included.
"""

import time
from collections.abc import Callable
from typing import Any

from torch import nn

SKIPPED = (
    "paceline.comm",
    "paceline.compat",
    "paceline.engine",
    "paceline.strategies.domains",
    "paceline.exchange",
    "paceline.strategies.precision",
    "paceline.strategies.tensor_parallel",
)  # called in passes, and not compiled: they communicate, or keep account


def unsupported() -> str:
    """Returns why this Python cannot compile, in torch's words; "" if it can."""
    from torch._dynamo.eval_frame import check_if_dynamo_supported

    try:
        check_if_dynamo_supported()
    except RuntimeError as error:
        return str(error)
    return ""


def usual_folder() -> str:
    """Returns the folder in which torch keeps compiled code by default. An import of torch._dynamo may name it in
    TORCHINDUCTOR_CACHE_DIR.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


def compile_in_place(module: nn.Module, backend: str | Callable[..., Any], threads: int) -> None:
    """Compiles the calls of `module`, with `threads` compilers at once. The first call of each kind takes the time."""
    import torch._dynamo.config
    import torch._inductor.config
    from torch._dynamo import trace_rules

    for name in SKIPPED:
        trace_rules.add(name)
    torch._inductor.config.compile_threads = threads
    with torch._dynamo.config.patch(wrap_top_frame=True):
        module.compile(backend=backend)


class CompileClock:
    """Counts the seconds in which this process compiles, from its construction on."""

    def __init__(self) -> None:
        from torch._dynamo.callback import on_compile_end, on_compile_start

        self._seconds = 0.0
        self._began: float | None = None
        on_compile_start(self._begin)
        on_compile_end(self._end)

    @property
    def seconds(self) -> float:
        return self._seconds

    def _begin(self, _: object) -> None:
        self._began = time.perf_counter()

    def _end(self, _: object) -> None:
        if self._began is not None:
            self._seconds += time.perf_counter() - self._began
            self._began = None
