"""Pufferfish: a model is trained as it is for a while, and then as products of thin matrices, which are fewer numbers.

Wang, Agarwal and Papailiopoulos 2021, "Pufferfish: Communication-efficient Models At No Extra Cost" (arXiv 2103.03936),
Algorithm 1. After a warm-up at full rank each weight W = U S V^T [out, in] is cut to its r largest singular values,

    W ~ (U_r sqrt(S_r)) (sqrt(S_r) V_r^T),      r = max(1, floor(ratio min(out, in))),

and a linear layer becomes two, V' = sqrt(S_r) V_r^T [r, in] and U' = U_r sqrt(S_r) [out, r], with no function between
them. A convolution of c_out filters of c_in k k weights is unrolled into [c_out, c_in k k]: V' is a convolution of r
filters of the same size, stride and padding, and U' one of 1 x 1. Biases stay behind U'. From then on the two factors
are trained and the product is never made, so that gradients, which are sent, and the optimizer's state have
r (in + out) entries in place of in out.

Hybrid, as in the paper: the first layers, whose error all later ones see, and the last one stay as they are.

As the authors' code has it, the optimizer begins anew with the factors: momentum is not carried over, of layers that
stay neither. The rate goes on by its schedule.

Deviations: the paper's unrolled matrix is the transpose of torch's, so that its U is V' here. The singular values are
computed in float64, and signs are chosen so that the largest entry of each column of U is positive. Embeddings,
recurrent layers and convolutions in groups stay as they are.

Cost: until the change that of the model, from then on that of the factors. At the change one decomposition of
O(in out min(in, out)), and a broadcast of the model, which is counted with evaluations and checkpoints, not with steps.
A factored layer keeps r activations a row more for backward.

Use it where a network is trained from scratch and gradients take long to send: no work is added to any step, as a
compressor adds it. A longer warm-up sends whole gradients for longer; docs/smaller_models.md has what it is worth.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import Tensor, nn

from ...compat.modules import hooked_parameters, is_plain
from ...conf.errors import ConfigError
from ..core.schedule import Unit
from .base import Adapt, Apart, State
from .patterns import matches, shown

U, V = "factor_u", "factor_v"
Layer = nn.Linear | nn.Conv2d
FACTORED = nn.Linear, nn.Conv2d


class Factored(nn.Sequential):
    """A module that replaces a linear layer or a convolution: x -> U' (V' x) + b."""

    def __init__(self, layer: Layer, rank: int) -> None:
        like: dict[str, Any] = {"dtype": layer.weight.dtype, "device": layer.weight.device}
        biased = layer.bias is not None
        if isinstance(layer, nn.Linear):
            v: nn.Module = nn.Linear(layer.in_features, rank, bias=False, **like)
            u: nn.Module = nn.Linear(rank, layer.out_features, bias=biased, **like)
        else:
            size, stride = cast("tuple[int, int]", layer.kernel_size), cast("tuple[int, int]", layer.stride)
            padding, dilation = cast("str", layer.padding), cast("tuple[int, int]", layer.dilation)
            mode = layer.padding_mode
            v = nn.Conv2d(
                layer.in_channels, rank, size, stride, padding, dilation, bias=False, padding_mode=mode, **like
            )
            u = nn.Conv2d(rank, layer.out_channels, 1, bias=biased, **like)
        if layer.bias is not None:
            cast("nn.Parameter", u.bias).requires_grad_(layer.bias.requires_grad)
        super().__init__(OrderedDict([(V, v), (U, u)]))
        self.rank = rank


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """[out, in] or [c_out, c_in, k, k] -> U' and V', as the weights of the two layers."""
    # W = U S V^T
    u, s, vt = torch.linalg.svd(weight.detach().flatten(1).double(), full_matrices=False)
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()  # [1, min(out, in)]
    root = s[:rank].sqrt()
    # U' = U_r sqrt(S_r),  V' = sqrt(S_r) V_r^T
    left, right = (u * signs)[:, :rank] * root, root[:, None] * (vt * signs.T)[:rank]
    if weight.dim() == 4:
        left, right = left[:, :, None, None], right.reshape(rank, *weight.shape[1:])
    return left.to(weight.dtype).contiguous(), right.to(weight.dtype).contiguous()


def product(u: Tensor, v: Tensor) -> Tensor:
    """Returns the weight that `factors` split: U' V', in the layer's own shape."""
    return (u.flatten(1) @ v.flatten(1)).reshape(len(u), *v.shape[1:])


class Pufferfish(Adapt):
    """Full rank, until the warm-up is over."""

    def __init__(
        self,
        warm_up: Annotated[float, Ge(0)] = 1.0,
        unit: Unit = "epochs",
        ratio: Annotated[float, Gt(0), Le(1)] = 0.25,
        keep_first: Annotated[int, Ge(0)] = 1,
        modules: Annotated[Sequence[Annotated[str, MinLen(1)]], MinLen(1)] = ("*",),
    ) -> None:
        """`warm_up`: how long all ranks are full, in `unit`. `ratio`: r over the full rank. `keep_first`: so many of
        the first layers, linear ones and convolutions, stay. `modules`: which of the others are factored, by name, or
        by what their names end in after a dot; * stands for anything. Raises `ConfigError`.
        """
        if unit == "steps" and warm_up != round(warm_up):
            raise ConfigError(
                f"adapt.warm_up={warm_up:g}: must be a whole number of steps; with adapt.unit=epochs it may be a part "
                "of an epoch"
            )
        self.warm_up, self.unit = warm_up, unit
        self.following = self._low_rank = LowRank(ratio, keep_first, tuple(modules))

    def apply(self, model: nn.Module) -> nn.Module:
        self._low_rank.chosen(model)
        return model

    def lasts(self, steps: int, steps_per_epoch: int) -> int:
        of_run = round(min(self.warm_up * (steps_per_epoch if self.unit == "epochs" else 1), 2.0**62))
        if of_run >= steps:
            longer = f"{self.warm_up:g} {self.unit}" + (f", {of_run:,} steps," if self.unit == "epochs" else "")
            raise ConfigError(
                f"adapt.warm_up={self.warm_up:g}: a warm-up of {longer} leaves nothing of the run, which has {steps:,} "
                "steps, for the factors. Choose a shorter one, or more steps."
            )
        return of_run


class LowRank(Adapt):
    """The chosen layers are products of two factors."""

    def __init__(self, ratio: float, keep_first: int, modules: tuple[str, ...]) -> None:
        self.ratio, self.keep_first, self.modules = ratio, keep_first, modules

    def rank(self, layer: Layer) -> int:
        """r"""
        return max(1, math.floor(self.ratio * min(len(layer.weight), layer.weight[0].numel()) + 1e-9))  # 0.29 * 100

    def apply(self, model: nn.Module) -> nn.Module:
        chosen = self.chosen(model)
        places = [(name, layer) for name, layer in model.named_modules(remove_duplicate=False) if layer in chosen]
        made: dict[nn.Module, Factored] = {layer: Factored(layer, self.rank(layer)) for layer in chosen}
        for name, layer in places:
            model.set_submodule(name, made[layer])
        return model

    def chosen(self, model: nn.Module) -> dict[Layer, str]:
        """The layers to factor, with their names, in the model's order. Raises `ConfigError`."""
        every = dict(model.named_modules())
        layers = {name: layer for name, layer in every.items() if type(layer) in FACTORED and is_plain(layer, FACTORED)}
        between = list(layers)[self.keep_first : -1]
        for pattern in self.modules:
            if layers and not any(matches(name, pattern) for name in layers):
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: no linear layer or convolution is called {pattern}; there "
                    f"are {', '.join(shown(layers))}"
                )
        holders = Counter(id(weight) for each in every.values() for weight in each.parameters(recurse=False))
        found = {
            cast("Layer", layers[name]): name
            for name in between
            if any(matches(name, pattern) for pattern in self.modules)
            and getattr(layers[name], "groups", 1) == 1
            and holders[id(layers[name].weight)] == 1
            and layers[name].weight.requires_grad
            and not any(hooked_parameters(layers[name]))
            # torch's reads the weights of its layers without calling them when it is evaluated
            and not isinstance(every[name.rpartition(".")[0]], nn.TransformerEncoderLayer)
        }
        if not found:
            raise ConfigError(
                f"adapt=pufferfish: nothing is left to factor: of the {len(layers)} linear layers and convolutions "
                f"(torch.nn.Linear, torch.nn.Conv2d) the first {self.keep_first} (adapt.keep_first) and the last stay "
                "as they are, and so do convolutions in groups, layers that are tied, frozen or hooked, and what "
                f"adapt.modules={list(self.modules)} leaves out. Choose a smaller adapt.keep_first, a deeper model, or "
                "adapt=none."
            )
        return found

    def carried(self, model: nn.Module, state: State) -> dict[str, Tensor]:
        found = dict(state)
        for name, layer in model.named_modules():
            if isinstance(layer, Factored):
                u, v = factors(found.pop(f"{name}.weight"), layer.rank)
                found |= {f"{name}.{U}.weight": u, f"{name}.{V}.weight": v}
                if (bias := found.pop(f"{name}.bias", None)) is not None:
                    found[f"{name}.{U}.bias"] = bias
        return found

    def added(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in names if {U, V} & {*name.split(".")})

    def merged(self, state: State) -> dict[str, Tensor]:
        found = dict(state)
        for layer in _layers(state):
            u, v = found.pop(f"{layer}.{U}.weight"), found.pop(f"{layer}.{V}.weight")
            found[f"{layer}.weight"] = product(u, v)
            if (bias := found.pop(f"{layer}.{U}.bias", None)) is not None:
                found[f"{layer}.bias"] = bias
        return found

    def apart(self, state: State) -> Apart:
        """The whole model with its factors."""
        ranks = {layer: len(state[f"{layer}.{V}.weight"]) for layer in _layers(state)}
        return Apart(dict(state), {"way": "pufferfish", "u": U, "v": V, "ranks": ranks}, "factored")


def _layers(state: State) -> list[str]:
    """The names of factored layers."""
    return [name.removesuffix(f".{V}.weight") for name in state if name.endswith(f".{V}.weight")]
