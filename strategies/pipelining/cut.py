"""Cuts a model into stages, so that the heaviest stage is as light as possible.

    time        the flops of a micro-batch's forward and backward pass, which is what the virtual cluster computes by
    memory      the bytes of parameters, in as many versions as the schedule has it keep, of gradients, and of the
                activations that the schedule has it hold at once
    parameters  the bytes of parameters

A schedule is as slow as its slowest stage. Of several cuts that are as good by time or memory, that one is taken which
sends the fewest bytes. What an optimizer keeps is not counted: it goes with the parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ...batches import Samples
from ...compat.storages import base_of, storage_key, version_of
from ...conf.errors import ConfigError
from ..core.balance import balanced, lightest


@dataclass(frozen=True)
class LayerProfile:
    """The cost of one micro-batch in one layer."""

    forward: int  # flops
    backward: int  # flops
    entered: int  # bytes of its input
    kept: dict[int, int]  # for backward: storage -> bytes; what two layers keep is the same storage
    passes: bool = True  # a gradient goes through it to the layer before
    takes: torch.dtype = torch.float32
    holds: dict[int, str] = field(default_factory=dict[int, str])  # the names of its buffers, by their ids
    writes: frozenset[int] = frozenset()  # the ids of those that its forward pass changes or exchanges


def look(
    layers: Sequence[nn.Module], inputs: Tensor, targets: Samples, loss: Callable[[Tensor, Any], Tensor]
) -> list[LayerProfile]:
    """All is on the meta device. The loss goes with the last layer. Raises `ConfigError`."""
    found: list[LayerProfile] = []
    alive: list[Tensor] = []  # a storage that is freed may have its key again
    buffers = [dict(layer.named_buffers()) for layer in layers]  # a pass may put others in their places

    def forward(layer: nn.Module, entered: Tensor, is_last: bool) -> tuple[Tensor, dict[int, int]]:
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            if not isinstance(base_of(tensor), nn.Parameter):
                alive.append(tensor)
                kept[storage_key(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = layer(entered)
            return (loss(output, targets) if is_last else output), kept

    x = inputs
    for i, (layer, its) in enumerate(zip(layers, buffers, strict=True)):
        entered = x.detach().requires_grad_(x.requires_grad)
        before = dict(layer.named_buffers())
        versions = {name: version_of(each) for name, each in before.items()}
        with FlopCounterMode(display=False) as first:
            x, kept = forward(layer, entered, i == len(layers) - 1)
        if not isinstance(x, Tensor):
            raise ConfigError(
                f"strategy.stages: layer {i} of the model gives a {type(x).__name__}, and a layer to cut between takes "
                "and gives one tensor. Put it and what takes its result into one module, or choose "
                "strategy=data_parallel."
            )
        passes = not entered.requires_grad
        with FlopCounterMode(display=False) as second:
            wanted = [each for each in (entered, *layer.parameters()) if each.requires_grad]
            if x.requires_grad and wanted:
                passes |= torch.autograd.grad(x.real.sum(), wanted, allow_unused=True)[0] is not None
        alive += [entered, x]
        size = entered.numel() * entered.element_size()
        now = dict(layer.named_buffers())
        same = {key for key, each in before.items() if now.get(key) is each and version_of(each) == versions[key]}
        holds = {id(each): name for name, each in its.items()}
        writes = frozenset(id(each) for name, each in its.items() if name not in same)
        flops = first.get_total_flops(), second.get_total_flops()
        found.append(LayerProfile(*flops, size, kept, passes, entered.dtype, holds, writes))
    return found


def by_parameters(layers: Sequence[nn.Module], stages: int) -> list[int]:
    return balanced([_bytes(layer) for layer in layers], stages)


def check_gradients(cuts: Sequence[int], looks: Sequence[LayerProfile]) -> None:
    """Raises `ConfigError` where a stage behind the first passes no gradient on, or takes what has none."""
    for begin, each in enumerate(looks):
        if begin in cuts and not each.takes.is_floating_point:
            raise ConfigError(
                f"strategy.cut={cuts}: layer {begin} takes {each.takes}, which has no gradient, and each stage "
                "but the first must. Choose strategy=data_parallel, or a strategy.cut without this place."
            )
    ends = [i for i, each in enumerate(looks) if i >= min(cuts, default=len(looks)) and not each.passes]
    if ends:
        raise ConfigError(
            f"strategy.cut={cuts}: layer {ends[0]} passes no gradient to the layers before it (as detach() does), "
            "and each stage but the first must. Choose strategy=data_parallel, or a strategy.cut with no cut "
            f"before layer {ends[0] + 1}."
        )


def check_buffers(cuts: Sequence[int], looks: Sequence[LayerProfile]) -> None:
    """Raises `ConfigError` where a stage changes a buffer that another one has, which would keep its own."""
    for begin, end in pairwise([0, *cuts, len(looks)]):
        written = {each: layer.holds[each] for layer in looks[begin:end] for each in layer.writes}
        others = {each for layer in [*looks[:begin], *looks[end:]] for each in layer.holds}
        if shared := sorted(written[each] for each in written.keys() & others):
            raise ConfigError(
                f"strategy.cut={cuts}: two stages use the buffer {shared[0]} and one changes it, and the other would "
                "not have the change. Choose strategy=data_parallel, or a strategy.cut with both uses in one stage."
            )


def _begins(looks: Sequence[LayerProfile]) -> list[bool]:
    """Returns for each layer whether a stage may begin with it: the first one, or one to which a gradient goes."""
    first = max((i + 1 for i, each in enumerate(looks) if not each.passes), default=0)
    return [i == 0 or (i >= first and each.takes.is_floating_point) for i, each in enumerate(looks)]


def by_time(layers: Sequence[nn.Module], looks: Sequence[LayerProfile], stages: int, recompute: bool) -> list[int]:
    flops = _before((1 + recompute) * each.forward + each.backward for each in looks)
    trained, begins = _before(map(_trained_bytes, layers)), _begins(looks)

    def taken(_: int, begin: int, end: int) -> float:
        return flops[end] - flops[begin] if trained[end] > trained[begin] and begins[begin] else inf

    return lightest(len(layers), stages, taken, lambda i: looks[i].entered)


def by_memory(
    layers: Sequence[nn.Module],
    looks: Sequence[LayerProfile],
    in_flight: Sequence[int],
    recompute: bool,
    versions: Sequence[int] | None = None,
) -> list[int]:
    """`in_flight`: for each stage, the most micro-batches whose activations it holds at once.

    `versions`: for each stage, those of its weights; None for one.

    With `recompute` a stage holds their inputs, and the activations of the one that is computed again.
    """

    sizes, trained, begins = _before(map(_bytes, layers)), _before(map(_trained_bytes, layers)), _begins(looks)

    def held(stage: int, begin: int, end: int) -> float:
        if trained[end] == trained[begin] or not begins[begin]:
            return inf
        merged: dict[int, int] = {}
        for each in looks[begin:end]:
            merged |= each.kept
        kept = sum(merged.values())
        activations = looks[begin].entered * in_flight[stage] + kept if recompute else kept * in_flight[stage]
        copies = (trained[end] - trained[begin]) * (1 if versions is None else versions[stage])
        return sizes[end] - sizes[begin] + copies + activations

    return lightest(len(layers), len(in_flight), held, lambda i: looks[i].entered)


def _before(sizes: Iterable[int]) -> list[int]:
    """Returns the sum of the sizes before each place, and of all."""
    return [0, *accumulate(sizes)]


def _bytes(layer: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in layer.parameters())


def _trained_bytes(layer: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in layer.parameters() if each.requires_grad)
