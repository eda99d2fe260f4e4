"""Memory of DeepSpeed by kind: stated from the sizes of tensors, and measured from its engine's tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ...compat.deepspeed import held_by, optimizer_state
from ..core.cost import Memory, kept_of, payload

MOVED = {"none": (), "optimizer": ("optimizer",), "all": ("optimizer", "parameters")}  # by offload, to the host


def stated(
    stage: int,
    offload: str,
    width: int,
    bucket: int,
    accumulates: bool,
    held: Memory,
    parameters: Sequence[Tensor],
    frozen: Sequence[int],
    replicas: int,
    own_adam: bool,
) -> Memory:
    """Returns the bytes of Psi trained parameters of `width` bytes on each of K replicas: the table in zero.py, at the
    precision of the run. `frozen` parameters, of so many entries, are whole on all replicas, except at stage 3, which
    partitions them too. Added to the table are

    - a copy of the weights in fp32 for the optimizer, from stage 1 on in fp32 training too;
    - from stage 1 on a bucket (of `bucket` entries at most) that gradients travel in, and at stage 2 and 3, before it
      fills, the gradients themselves;
    - where a step has several micro-batches (`accumulates`), at stage 3 a second share, of what has been summed so far;
    - with offload, gradients in fp32 on the host; at stage 3 as they were computed, too.

    `own_adam`: DeepSpeed's steps, whose count of steps is no tensor.
    """
    psi = sum(parameter.numel() for parameter in parameters)
    pieces = sum(-(-parameter.numel() // replicas) for parameter in parameters)  # stage 3 cuts each parameter
    share = {0: psi, 1: -(-psi // replicas), 2: -(-psi // replicas), 3: pieces}[stage]
    bucket = min(bucket, psi) if stage > 0 else 0
    offloads = offload != "none"
    gradients = {0: psi, 1: psi, 2: min(psi, bucket + share), 3: bucket + share * (2 if accumulates else 1)}[stage]
    if offloads and stage > 1:
        gradients = bucket
    fixed = sum(-(-entries // replicas) if stage == 3 else entries for entries in frozen)
    each, count = kept_of(held["optimizer"], parameters)
    flat = 1 if stage > 0 else len(parameters)  # tensors that are stepped
    stepped = share if stage in (0, 3) else -(-psi // (2 * replicas)) * 2  # DeepSpeed aligns its flat parameters
    state = each * 4 // width * stepped + (0 if own_adam else count * flat)
    memory = {
        **held,
        "parameters": width * (fixed + (share if stage == 3 else psi)),
        "gradients": width * gradients,
        "optimizer": state + (4 * stepped if stage > 0 or width < 4 else 0),
        "buffers": held["buffers"] + width * bucket,
    }
    if offloads:
        memory["host_gradients"] = 4 * stepped + (width * share if stage == 3 else 0)
    return _moved(memory, offload)


def _moved(memory: Memory, offload: str) -> dict[str, int]:
    kinds = MOVED[offload]
    return {**memory, **dict.fromkeys(kinds, 0), **{f"host_{kind}": memory[kind] for kind in kinds}}


class DeepSpeedPeaks:
    """The most bytes that the tensors of DeepSpeed's engine take in the first step, by kind."""

    def __init__(self, module: nn.Module, stage: int, offload: str, fp32: bool) -> None:
        """`fp32`: what is trained in."""
        self._module, self._stage, self._offload, self._fp32 = module, stage, offload, fp32
        self.peak: dict[str, int] = {}

    def watch(self, engine: Callable[[], Any]) -> None:
        """Look whenever a gradient is there. `engine`: DeepSpeed's, once it is there."""
        self._engine = engine
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: self._look())
            for parameter in self._module.parameters()
            if parameter.requires_grad
        ]

    def end_step(self) -> None:
        if self._hooks:
            self._look()
        while self._hooks:
            self._hooks.pop().remove()

    def _look(self) -> None:
        engine, offloads = self._engine(), self._offload != "none"
        held = held_by(engine, self._module, self._stage, self._fp32)
        own = [parameter.grad for parameter in self._module.parameters() if parameter.grad is not None]
        kinds = {
            "parameters": held.parameters,
            "optimizer": [*held.copies, *optimizer_state(engine)],
            "gradients": [*own, *held.gradients, *([] if offloads else held.partition)],
            "buffers": [*self._module.buffers(), *held.buckets],
        }
        if offloads:
            kinds["host_gradients"] = [*(c.grad for c in held.copies if c.grad is not None), *held.partition]
        now = _moved({kind: payload(tensors) for kind, tensors in kinds.items()}, self._offload)
        self.peak = {kind: max(size, self.peak.get(kind, 0)) for kind, size in now.items()}
