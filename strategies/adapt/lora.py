"""LoRA: the weights of a trained model stay as they are, and a product of two thin matrices is learnt beside them.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685), section 4.1. A linear layer of
weight W [out, in] becomes, with A [r, in] and B [out, r],

    h = W x + b + (alpha / r) B A x

W, b and all other weights of the model are frozen; A is drawn at random and B is zero, so that training begins with
the model as it was, bit for bit. In training the x that A sees goes through dropout. Merged, the layer is an ordinary
one again:

    W' = W + (alpha / r) B A

With base=bf16 the W of adapted layers are held in bfloat16, 2 bytes an entry in place of 4, as practice has it where
a model of 7 billion parameters is to fit on a card of 24 GB. base=int8 and base=nf4 (QLoRA) hold them in 8 and 4 bits
(narrow.py). W is rounded once, and passes widen one layer's at a time; A, B and W' are in float32.

Deviations: A is drawn from the uniform distribution on +-1/sqrt(in), as the authors' code and peft have it; in the
paper it is Gaussian. The paper adapts the attention's matrices alone; here that is said by `modules`.

Cost: factors have r (in + out) entries a layer, and are all that travels, that has a gradient and an optimizer's state,
and that is saved apart. Backward needs no gradient of W: about a third less is computed. A forward pass takes 2 r (in +
out) flops a row more.

Use it where a trained model is to be fitted to other data, and its gradients or its optimizer's state do not fit or
take too long to send. From random weights (without `weights`) it learns little: most weights stay random.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt, MinLen
from torch import Tensor, nn

from ...compat.modules import is_plain
from ...compat.storages import has_hooks
from ...conf.errors import ConfigError
from ...cost.transformer import Factors
from .base import Adapt, Apart, State
from .narrow import BASES, NarrowBase, NarrowLinear, check_there
from .patterns import matches, shown
from .replaced import Replaced

if TYPE_CHECKING:
    from ..core.strategy import Strategy
    from ..core.sync import Sync

A, B = "lora_A", "lora_B"  # as peft calls them
IN_PEFT = "base_model.model."  # before each name


class WidenedLinear(torch.autograd.Function):
    """x W^T + b, x wider than the frozen W, which is widened in each pass. Only W itself is kept for backward."""

    generate_vmap_rule = True  # privacy=dp_sgd takes each sample's gradient by torch.func

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return F.linear(x, weight.to(x.dtype), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        [weight] = ctx.saved_tensors
        return gradient @ weight.to(gradient.dtype), None, None


class LoRALinear(Replaced):
    """[..., in] -> [..., out]. Its `weight` and `bias` are the frozen ones of the layer whose place it takes; `held`:
    the weight is rounded to this. The tensors of a narrow base take the place of `weight`.
    """

    def __init__(
        self, frozen: nn.Linear, rank: int, scale: float, dropout: float, held: torch.dtype | NarrowBase | None = None
    ) -> None:
        super().__init__()
        self.base = None if isinstance(held, torch.dtype) else held
        if self.base is None:
            self.weight = frozen.weight
        else:
            for name, tensor in zip(self.base.names, self.base.packed(frozen.weight.detach()), strict=True):
                self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.bias = frozen.bias
        self.scale, self.rank = scale, rank  # alpha / r, and r
        self.in_features, self.out_features = frozen.in_features, frozen.out_features
        self.dropout = nn.Dropout(dropout)
        like = {"dtype": frozen.weight.dtype, "device": frozen.weight.device}
        self.lora_A = nn.Parameter(torch.empty(rank, frozen.in_features, **like))
        self.lora_B = nn.Parameter(torch.zeros(frozen.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)  # on +-1/sqrt(in)
        if isinstance(held, torch.dtype):
            self.weight.data = self.weight.data.to(held)

    def forward(self, x: Tensor) -> Tensor:
        # h = W x + b + (alpha / r) B A x
        low = F.linear(self.dropout(x), self.lora_A)  # [..., r]
        return self._frozen(x) + self.scale * F.linear(low, self.lora_B)

    def _frozen(self, x: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")  # which rounds x itself
        if self.base is not None:
            if autocast:
                x = x.to(torch.get_autocast_dtype("cuda" if torch.is_autocast_enabled("cuda") else "cpu"))
            held = (getattr(self, name) for name in self.base.names)  # strategy=offload puts plain tensors there
            return cast(
                Tensor, NarrowLinear.apply(x, self.bias, self.base, (self.out_features, self.in_features), *held)
            )
        if x.dtype == self.weight.dtype or autocast:
            return F.linear(x, self.weight, self.bias)
        return cast(Tensor, WidenedLinear.apply(x, self.weight, self.bias))

    def extra_repr(self) -> str:
        # of the weights there may be a share
        return f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, scale={self.scale}"


class LoRA(Adapt):
    """Linear layers are adapted, all else is frozen."""

    def __init__(
        self,
        rank: Annotated[int, Ge(1)] = 8,
        alpha: Annotated[float, Gt(0)] = 16.0,
        modules: Annotated[Sequence[Annotated[str, MinLen(1)]], MinLen(1)] = ("*",),
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        base: Literal["fp32", "bf16", "int8", "nf4"] = "fp32",
    ) -> None:
        """`rank`, `alpha`: r and alpha. `modules`: which linear layers, by name, or by what their names end in after a
        dot; * stands for anything. `dropout`: of x before A. `base`: what the W of adapted layers are held in.
        """
        self.rank, self.alpha, self.modules, self.dropout = rank, alpha, tuple(modules), dropout
        self.base = base
        self.held = torch.bfloat16 if base == "bf16" else BASES.get(base)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def factors(self) -> Factors | None:
        return Factors(self.rank, self.base == "bf16") if self.modules == ("*",) else None

    def apply(self, model: nn.Module) -> nn.Module:
        chosen = self._chosen(model)
        places = [(name, layer) for name, layer in model.named_modules(remove_duplicate=False) if layer in chosen]
        model.requires_grad_(False)
        adapted: dict[nn.Module, LoRALinear] = {
            layer: LoRALinear(layer, self.rank, self.scale, self.dropout, self.held) for layer in chosen
        }
        for name, layer in places:
            if not name:
                return adapted[layer]
            model.set_submodule(name, adapted[layer])
        return model

    def _chosen(self, model: nn.Module) -> dict[nn.Linear, str]:
        """The layers to adapt, with their names. Raises `ConfigError`."""
        every = dict(model.named_modules())
        linear = {
            name: layer for name, layer in every.items() if type(layer) is nn.Linear and is_plain(layer, nn.Linear)
        }
        if not linear:
            raise ConfigError("adapt=lora: adapts linear layers (torch.nn.Linear), and the model has none; adapt=none")
        for pattern in self.modules:
            if not any(matches(name, pattern) for name in linear):
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: no linear layer is called {pattern}; there are "
                    f"{', '.join(shown(linear))}"
                )
        found = {layer: name for name, layer in linear.items() if any(matches(name, each) for each in self.modules)}
        for layer, name in found.items():
            most = min(layer.weight.shape)
            if self.rank > most:
                raise ConfigError(
                    f"adapt.rank={self.rank}: the layer {name or 'itself'} has a matrix of {list(layer.weight.shape)}, "
                    f"whose rank is at most {most}. Choose adapt.rank <= {most}, or adapt.modules that leave it out."
                )
        self._check_frozen(model, every)
        self._check_alone(found, every)
        return found

    def _check_frozen(self, model: nn.Module, every: dict[str, nn.Module]) -> None:
        """Raises `ConfigError` where something beside the factors would change."""
        moving = [name for name, layer in every.items() if getattr(layer, "running_mean", None) is not None]
        if moving:
            raise ConfigError(
                f"adapt=lora: {', '.join(shown(moving))} would keep running statistics of what it trains on, but all "
                "but the factors stays. Choose a model with other norms (model.norm=group), or adapt=none."
            )
        if own := [name for name, _ in model.named_parameters() if _ends_in(name, A) or _ends_in(name, B)]:
            raise ConfigError(f"adapt=lora: the model has a parameter called {own[0]} already; adapt=none trains it")

    def _check_alone(self, chosen: dict[nn.Linear, str], every: dict[str, nn.Module]) -> None:
        """Raises `ConfigError` where a weight is used by more than the layer that is adapted."""
        holders = Counter(id(weight) for each in every.values() for weight in each.parameters(recurse=False))
        for layer, name in chosen.items():
            if holders[id(layer.weight)] > 1:
                others = [other for other, each in every.items() if getattr(each, "weight", None) is layer.weight]
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: {' and '.join(others)} have one weight (tied), and {name} "
                    "alone would be adapted. Choose adapt.modules that leave it out."
                )
            if has_hooks(layer.weight):
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: the weight of {name} has a hook on its gradient, and factors "
                    "that have none are trained in its place. Choose adapt.modules that leave it out."
                )
            above = every[name.rpartition(".")[0]]
            if isinstance(above, nn.TransformerEncoderLayer):
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: torch's TransformerEncoderLayer, which {name} is in, reads "
                    "the weights of its layers without calling them when it is evaluated, and would pass over the "
                    "factors. Choose adapt.modules that leave it out."
                )

    def added(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in names if _ends_in(name, A) or _ends_in(name, B))

    def plain_shapes(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        found, base = dict(shapes), BASES.get(self.base)
        if base is None:
            return found
        for layer in _layers(shapes):
            for name in base.names:
                del found[layer + name]
            found[f"{layer}weight"] = [shapes[layer + B][0], shapes[layer + A][1]]
        return found

    def begun(self, state: State, names: frozenset[str]) -> dict[str, Tensor]:
        found, base = dict(state), BASES.get(self.base)
        if base is None:
            return found
        for layer in _layers(names):
            for name, tensor in zip(base.names, base.packed(found.pop(f"{layer}weight")), strict=True):
                found[layer + name] = tensor
        return found

    def merged(self, state: State) -> dict[str, Tensor]:
        found = {name: tensor for name, tensor in state.items() if name not in self.added(frozenset(state))}
        base = BASES.get(self.base)
        for layer in _layers(state):
            b, a = state[layer + B], state[layer + A]
            if base is not None:
                held = [found.pop(layer + name) for name in base.names]
                found[f"{layer}weight"] = base.widened(held, (len(b), a.shape[1]), b.dtype)
            # W' = W + (alpha / r) B A
            found[f"{layer}weight"] = found[f"{layer}weight"] + self.scale * (b @ a)
        return found

    def check(self, strategy: "Strategy", sync: "Sync", parts: Sequence[nn.Module], names: tuple[str, str]) -> None:
        if self.base in BASES and (strategy.traits.rounds_weights or strategy.parts > 1):
            raise ConfigError(
                f"adapt.base={self.base}: its numbers have dtypes that strategy={names[0]} does not hold. Choose "
                "strategy=data_parallel, or adapt.base=bf16."
            )

    def check_machine(self) -> None:
        check_there(self.base)

    def apart(self, state: State) -> Apart:
        """Returns the adapter in peft's layout."""
        layers = _layers(state)
        tensors = {f"{IN_PEFT}{layer}{own}.weight": state[layer + own] for layer in layers for own in (A, B)}
        config = {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "r": self.rank,
            "lora_alpha": int(self.alpha) if self.alpha == int(self.alpha) else self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": _in_peft(state, [layer.rstrip(".") for layer in layers]),
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "inference_mode": True,
        }
        return Apart(tensors, config)


def _ends_in(name: str, own: str) -> bool:
    return name.rpartition(".")[2] == own


def _layers(state: Iterable[str]) -> list[str]:
    """The names of adapted layers, each with the dot behind it."""
    return [name.removesuffix(A) for name in state if _ends_in(name, A)]


def _in_peft(state: State, layers: list[str]) -> list[str] | str:
    """Returns peft's target modules for these layers.

    A name also stands for layers that end in it after a dot. If other weights end so, it is a pattern of exact names.
    """
    others = {name.removesuffix(".weight") for name in state if name.endswith(".weight")} - {*layers}
    exact = not any(other.endswith(f".{layer}") for other in others for layer in layers)
    return layers if exact else "|".join(map(re.escape, layers))
