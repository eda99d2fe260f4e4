"""Sequence parallelism: between tensor-parallel layers (norms, dropout, residual sums) each worker has a slice.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section
4.2.2. Layers that compute each place of [n, t, w] from that place alone need no other, so that worker i takes the t / d
places of slice i:

    enter    [n, t, w], the same on all -> its slice       backward: all-gather
    leave    its slice -> [n, t, w] on all, by all-gather  backward: its slice of the gradient, which all have alike

Attention looks at other places between its own column and row layer alone, where all places are gathered (layers.py).
A whole parameter within has a gradient of its slice, which is summed over the workers before anybody sees it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...compat.modules import is_plain
from ...conf.errors import ConfigError
from .find import ELEMENTWISE, Degrees, Kind, sequences
from .group import TensorGroup

BY_PLACE = (*ELEMENTWISE, nn.LayerNorm, nn.RMSNorm, nn.Linear)


def runs_of(model: nn.Module, kinds: Mapping[str, Kind]) -> list[list[str]]:
    """Layers, by name, that follow one another and are by place but for what `kinds` cuts; each run has a cut layer
    and a norm."""
    found: list[list[str]] = []
    tied = _tied(model, kinds)
    for names in sequences(model):
        run: list[str] = []
        for name in [*names, None]:
            if name is not None and name not in tied and _by_place(name, model.get_submodule(name), kinds):
                run.append(name)
                if kinds.get(name) != "vocabulary":  # a head's outputs are of the whole sequence
                    continue
            is_cut = any(own == each or own.startswith(f"{each}.") for each in run for own in kinds)
            if is_cut and any(_gains(model.get_submodule(each)) for each in run):
                found.append(run)
            run = []
    inner = {each for run in found for each in run}
    return [run for run in found if not any(run[0].startswith(f"{each}.") for each in inner)]


def _tied(model: nn.Module, kinds: Mapping[str, Kind]) -> set[str]:
    """Layers with a whole weight that has another place, and the layers that these are in: the one place may see a
    slice of the sequence and the other all of it, and the sum of both gradients would be neither."""
    places = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    found: set[str] = set()
    for name, layer in model.named_modules(remove_duplicate=False):
        if name not in kinds and any(places[id(each)] > 1 for each in layer.parameters(recurse=False)):
            parts = name.split(".")
            found.update(".".join(parts[:i]) for i in range(1, len(parts) + 1))
    return found


def _by_place(name: str, layer: nn.Module, kinds: Mapping[str, Kind]) -> bool:
    if is_plain(layer, nn.Sequential):
        return all(_by_place(f"{name}.{own}", each, kinds) for own, each in layer.named_children())
    if not getattr(layer, "by_place", False):
        return is_plain(layer, BY_PLACE)
    grouped: list[tuple[str, Any]] = [(own, each) for own, each in layer.named_modules() if hasattr(each, "by_group")]
    return all(f"{name}.{own}.{linear}" in kinds for own, each in grouped for linear in each.by_group)


def _gains(layer: nn.Module) -> bool:
    """Tells whether `layer` keeps or computes anything of whole activations that slices make smaller."""
    return any(isinstance(each, nn.LayerNorm | nn.RMSNorm) for each in layer.modules())


class Begin:
    """A hook before a part's first layer, which restarts the random numbers of the piece."""

    def __init__(self, group: TensorGroup) -> None:
        self.group = group

    def __call__(self, part: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.group.draws.restart()


class Enter:
    """A hook before the first layer of a run, which takes this worker's slice of the sequence.

    `degrees`: the numbers of pieces into which the layers can be cut.
    """

    def __init__(self, piece: int, group: TensorGroup, degrees: Degrees) -> None:
        self.piece, self.group, self.degrees = piece, group, degrees

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        if x.dim() < 3:
            raise ConfigError(
                f"strategy.sequence=true: activations {list(x.shape)} have no sequence to cut, which is the second of "
                "three or more dimensions. Choose strategy.sequence=false."
            )
        if (t := x.shape[1]) % (degree := self.group.size):
            near = " or ".join(str(n) for n in (t // degree * degree, (t // degree + 1) * degree) if n)
            others = " or ".join(map(str, self.degrees.nearest(degree, dividing=t)))
            raise ConfigError(
                f"strategy.sequence=true: a sequence of {t} cannot be cut into {degree} equal slices. Choose {near} "
                "places, " + (f"{self.group.knob}={others}, " if others else "") + "or strategy.sequence=false."
            )
        self.group.draws.restart()
        if layer.training:
            self.group.draws.enter(self.piece, x.device)
        return _Slice.apply(x, self.piece, self.group), *rest


class Leave:
    """A hook after the last layer of a run, which gathers the slices.

    `is_whole`: the layer's output is of the whole sequence already.
    """

    def __init__(self, piece: int, group: TensorGroup, is_whole: bool) -> None:
        self.piece, self.group, self.is_whole = piece, group, is_whole

    def __call__(self, layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
        self.group.draws.leave(output.device)
        if self.is_whole:
            return output
        whole: Tensor = _Whole.apply(output, self.piece, self.group)
        return whole


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: int, group: TensorGroup) -> Tensor:
        ctx.group = group
        return slice_of(x, piece, group.size)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.gather(grad_outputs[0], "gradients of inputs"), None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: int, group: TensorGroup) -> Tensor:
        ctx.piece, ctx.size = piece, group.size
        return group.gather(x, "activations")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return slice_of(grad_outputs[0], ctx.piece, ctx.size), None, None


def slice_of(x: Tensor, piece: int, pieces: int) -> Tensor:
    """A copy: a view would keep all of it."""
    return x.chunk(pieces, dim=1)[piece].clone(memory_format=torch.contiguous_format)
