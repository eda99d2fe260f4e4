"""What DeepSpeed holds, by kind: stated from the sizes that there are, and measured from its engine's tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..base import Memory, payload

MOVED = {"none": (), "optimizer": ("optimizer",), "all": ("optimizer", "parameters")}  # by offload, to the host

COPIES = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups")  # of the weights, in fp32


def stated(
    stage: int,
    offload: str,
    width: int,
    bucket: int,
    accumulates: bool,
    held: Memory,
    parameters: Sequence[Tensor],
    replicas: int,
) -> Memory:
    """Of Psi parameters of `width` bytes and K replicas the table in zero.py, at the precision that there is, and

    - a copy of the weights in fp32 for the optimizer, from stage 1 on in fp32 training too;
    - from stage 1 on a bucket (of `bucket` entries at most) that gradients travel in, and at stage 2 and 3, before it
      fills, the gradients themselves;
    - where a step has several micro-batches (`accumulates`), at stage 3 a second share, of what has been summed so far;
    - with offload, gradients in fp32 on the host; at stage 3 as they were computed, too.
    """
    psi = sum(parameter.numel() for parameter in parameters)
    pieces = sum(-(-parameter.numel() // replicas) for parameter in parameters)  # stage 3 cuts each parameter
    share = {0: psi, 1: -(-psi // replicas), 2: -(-psi // replicas), 3: pieces}[stage]
    bucket = min(bucket, psi) if stage > 0 else 0
    offloads = offload != "none"
    gradients = {0: psi, 1: psi, 2: min(psi, bucket + share), 3: bucket + share * (2 if accumulates else 1)}[stage]
    if offloads and stage > 1:
        gradients = bucket
    memory = {
        **held,
        "parameters": width * (share if stage == 3 else psi),
        "gradients": width * gradients,
        "optimizer": held["optimizer"] * 4 // width * share // psi + (4 * share if stage > 0 or width < 4 else 0),
        "buffers": held["buffers"] + width * bucket,
    }
    if offloads:
        memory["host_gradients"] = (4 + (width if stage == 3 else 0)) * share
    return _moved(memory, offload)


def _moved(memory: Memory, offload: str) -> dict[str, int]:
    kinds = MOVED[offload]
    return {**memory, **dict.fromkeys(kinds, 0), **{f"host_{kind}": memory[kind] for kind in kinds}}


class Account:
    """The most bytes that the tensors of DeepSpeed's engine take in the first step, by kind."""

    def __init__(self, module: nn.Module, offload: str) -> None:
        self._module, self._offload = module, offload
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
        engine, parameters = self._engine(), list(self._module.parameters())
        zero, state = engine.optimizer, engine.basic_optimizer.state
        copies = [tensor for name in COPIES for tensor in _tensors(zero, name)]
        partition = _tensors(zero, "grad_partitions_flat_buffer")
        buckets = getattr(zero, "ipg_buckets", {}).values()
        offloads = self._offload != "none"
        kinds = {
            "parameters": [getattr(parameter, "ds_tensor", parameter) for parameter in parameters],
            "optimizer": [*copies, *(leaf for leaf in tree_leaves(list(state.values())) if isinstance(leaf, Tensor))],
            "gradients": [
                *(parameter.grad for parameter in parameters if parameter.grad is not None),
                *_tensors(zero, "averaged_gradients"),
                *([] if offloads else partition),
            ],
            "buffers": [*self._module.buffers(), *(t for bucket in buckets for t in _tensors(bucket, "buffer"))],
        }
        if offloads:
            kinds["host_gradients"] = [*(c.grad for c in copies if c.grad is not None), *partition]
        now = _moved({kind: payload(tensors) for kind, tensors in kinds.items()}, self._offload)
        self.peak = {kind: max(size, self.peak.get(kind, 0)) for kind, size in now.items()}


def _tensors(owner: Any, name: str) -> list[Tensor]:
    """All tensors in an attribute of DeepSpeed's, which is a tensor, or lists or dicts of tensors, or not there."""
    return [leaf for leaf in tree_leaves(getattr(owner, name, None)) if isinstance(leaf, Tensor)]
