"""Memory of torch's FSDP2 by kind: stated from the sizes that are gathered at once, and measured from its tensors."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...compat.fsdp import held_by, whole_parameters
from ...compat.storages import storage_key
from ..core.cost import Memory, kept_of, payload

Group = Sequence[Tensor]  # parameters that are gathered at once


def padded(parameters: Group, replicas: int) -> int:
    """Bytes once the rows are a multiple of the replicas."""
    return sum(
        -(-len(parameter) // replicas) * replicas * parameter[0].numel() * parameter.element_size()
        for parameter in parameters
    )


def stated(
    root: Group, blocks: Sequence[Group], reshard: bool, accumulates: bool, held: Memory, replicas: int
) -> Memory:
    """Returns the bytes of each of K replicas: 1/K of parameters, gradients and optimizer state, and for a while whole

    - parameters, of the block at work and of what is in no block, with what the gathering of one block more (of the
      block itself in the forward pass, of the one before it in the backward pass) leaves behind: buffers;
    - gradients, of the block at work and, in a buffer, of the block after it, which are being summed.

    Without `reshard`, blocks stay whole from their forward pass to their backward pass. Where a step has several
    micro-batches (`accumulates`), all gradients are whole until the last of them is summed.
    """
    if replicas == 1:
        return held
    whole = [padded(block, replicas) for block in blocks]
    trained = [[parameter for parameter in block if parameter.requires_grad] for block in blocks]
    summed = [padded(block, replicas) for block in trained]
    root_whole = padded(root, replicas)
    root_trained = [parameter for parameter in root if parameter.requires_grad]
    kept = sum(summed) + padded(root_trained, replicas)
    buffers = [2 * root_whole]
    gradients = [kept // replicas, sum(summed) // replicas + payload(root_trained)]
    for i, block in enumerate(trained):
        at_work = root_whole + (whole[i] if reshard else sum(whole[: i + 1]))
        ahead = whole[i - 1] if reshard and i > 0 else 0
        behind = summed[i + 1] if i + 1 < len(blocks) else 0
        buffers += [at_work + whole[i], at_work + ahead + behind]
        gradients.append(sum(summed[i + 1 :]) // replicas + payload(block))
    if accumulates:
        gradients.append(payload(root_trained) + sum(map(payload, trained)))
    every = [*root, *(parameter for block in blocks for parameter in block)]
    each, count = kept_of(held["optimizer"], (stepped := [p for p in every if p.requires_grad]))
    entries = padded(stepped, replicas) // replicas // stepped[0].element_size()
    return {
        **held,
        "parameters": padded(every, replicas) // replicas,
        "gradients": max(gradients),
        "optimizer": each * entries + count * len(stepped),
        "buffers": held["buffers"] + max(buffers),
    }


class FSDPPeaks:
    """The most bytes that FSDP's tensors take in the first step, by kind.

    Looked at when a block's forward pass is over and when a gradient is there.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Registers hooks. Call it before `fully_shard`, which shards a block again in a hook of its own."""
        self._module = module
        self.peak: dict[str, int] = {}
        self._hooks = [block.register_forward_hook(self._after_forward) for block in [*blocks, module]]
        self._watched: set[int] = set()

    def end_step(self) -> None:
        """Gradients are there, and nothing is whole."""
        if self._hooks:
            self._look()
        while self._hooks:
            self._hooks.pop().remove()

    def _after_forward(self, *_: Any) -> None:
        for whole in whole_parameters(self._module):
            if whole.requires_grad and id(whole) not in self._watched:
                self._watched.add(id(whole))
                self._hooks.append(whole.register_post_accumulate_grad_hook(lambda _: self._look()))
        self._look()

    def _look(self) -> None:
        held = held_by(self._module)
        kinds = {
            "parameters": held.sharded,
            "gradients": [tensor.grad for tensor in held.trained if tensor.grad is not None],
            "buffers": [*self._module.buffers(), *held.buffers],
        }
        now = {kind: held_bytes(tensors) for kind, tensors in kinds.items()}
        self.peak = {kind: max(size, self.peak.get(kind, 0)) for kind, size in now.items()}


def held_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the distinct storages here: one that is freed has none, whatever its tensor's shape."""
    own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    own = [tensor for tensor in own if isinstance(tensor, Tensor)]
    storages = {storage_key(tensor): tensor.untyped_storage() for tensor in own}
    return sum(storage.nbytes() for storage in storages.values())
