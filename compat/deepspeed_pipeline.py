"""DeepSpeed's PipelineEngine: the shape that it expects, what it holds between instructions, and when one is over."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .changed import need

SHAPE = "by which strategy=deepspeed_pipeline tells DeepSpeed what a stage receives"
HELD = "from which the memory of strategy=deepspeed_pipeline is read"


def expect(engine: Any, entering: Tensor | None) -> None:
    """Sets the shape of micro-batches to that of `entering`, which becomes the buffer to receive in; None for the first
    stage. Without this, a stage sends the shape of its first micro-batch ahead, in 1 KiB.

    Raises `ChangedLibraryError`.
    """
    engine.reset_activation_shape()
    for name in ("first_output_send", "pipe_recv_buf"):
        need(engine, name, "deepspeed", SHAPE)
    engine.first_output_send, engine.pipe_recv_buf = False, entering


def held_between(engine: Any) -> list[Tensor]:
    """Returns the engine's receive buffers, the micro-batches that it keeps, their gradients and its outputs. Raises
    `ChangedLibraryError`.
    """
    kept = need(engine, "pipe_buffers", "deepspeed", HELD)
    inputs, outputs = kept["inputs"], kept["outputs"]
    gradients = [each.grad for each in inputs if each is not None]
    room = [need(engine, name, "deepspeed", HELD) for name in ("pipe_recv_buf", "grad_layer")]
    return [each for each in (*room, *inputs, *gradients, *outputs) if isinstance(each, Tensor)]


def after_each_instruction(engine: Any, look: Callable[[], None]) -> None:
    """Call `look` whenever the engine has done one of its schedule's instructions. Raises `ChangedLibraryError`."""
    schedule = need(engine, "_train_schedule", "deepspeed", HELD)
    engine._train_schedule = lambda: _OneByOne(schedule(), look)


class _OneByOne:
    """A schedule whose steps are of one instruction each: the engine asks for the next when it has done one."""

    def __init__(self, schedule: Any, look: Callable[[], None]) -> None:
        self._schedule, self._look = schedule, look

    def num_pipe_buffers(self) -> int:
        return self._schedule.num_pipe_buffers()

    def __iter__(self) -> Iterator[list[Any]]:
        for instructions in self._schedule:
            for each in instructions:
                yield [each]
                self._look()
