"""Quantization-aware training: forward and backward see weights of few bits, and the optimizer steps on full ones.

Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (arXiv
1712.05877), section 3, of weights alone. A layer of weight w computes with q(w), and the gradient passes q as if it
were not there, straight through (Bengio et al. 2013, arXiv 1308.3432):

    y = q(w) x + b,    dL/dw = dL/dq

With w a row [n] of the weight [out, n], which is what makes one output (of a convolution n is channels x kernel):

    int8, int4   q = s round(w / s),  s = max|w| / Q,  Q = 2^(bits - 1) - 1, half to even: symmetric, no zero point
    ternary      q = alpha sign(w) where |w| > delta, else 0;  delta = 0.7 mean|w|,  alpha = mean |w| of those above it
                 (Li et al. 2016, "Ternary Weight Networks", arXiv 1605.04711, equations 5 and 6)
    binary       q = alpha sign(w), alpha = mean|w|  (Rastegari et al. 2016, "XNOR-Net", arXiv 1603.05279, equation 6,
                 its Binary-Weight-Network); sign(0) = 1, as in Courbariaux et al. 2015, "BinaryConnect" (1511.00363)
    float        q = w

What is quantized again stays as it is, bit for bit in float32 and less. With `clip`, dL/dw = 0 where |w| > 1, as in
BinaryConnect's successor (Courbariaux et al. 2016, arXiv 1602.02830, equation 4).

Deviations: activations stay float; scales follow the weights of each step, for the first paper's learnt ranges;
XNOR-Net passes alpha's own gradient, too, and BinaryConnect clips the weights themselves.

Cost: what travels, has a gradient and an optimizer's state is as without it. A pass reads each quantized weight a few
times more, and keeps q(w) for backward, once a micro-batch: as many bytes of activations as these weights have. What is
put to use has `bits` an entry, and a float32 scale a row.

Use it where what is trained is to be put to use on a small machine, and rounding it afterwards costs too much accuracy:
below 8 bits. Batches, steps and rates are those of full weights.
"""

from collections import Counter
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...compat.modules import is_plain
from ...conf.errors import ConfigError
from ..core.cost import payload
from .base import Adapt, State
from .replaced import Replaced

LAYERS = nn.Linear, nn.Conv2d
Kind = Literal["float", "int8", "int4", "ternary", "binary"]
BITS: dict[Kind, int] = {"int8": 8, "int4": 4, "ternary": 2, "binary": 1}  # an entry, packed
SCALE = 4  # bytes a row


def quantized(w: Tensor, kind: Kind) -> Tensor:
    """q(w), of the shape and dtype of w [out, ...]."""
    if kind == "float":
        return w
    rows = w.detach().flatten(1).to(torch.promote_types(w.dtype, torch.float32))  # [out, n]
    size = rows.abs()
    if kind in ("int8", "int4"):
        most = size.amax(dim=1, keepdim=True)  # max|w|; s = most / Q
        levels = 2 ** (BITS[kind] - 1) - 1  # Q
        whole = torch.round(rows / most.where(most > 0, 1.0) * levels)
        q = whole / levels * most  # in this order max|w| stays what it is, and so does s
    elif kind == "ternary":
        kept = size > 0.7 * _mean(size, torch.ones_like(size, dtype=torch.bool))
        q = torch.where(kept, rows.sign() * _mean(size, kept), 0.0)
    else:
        alpha = _mean(size, torch.ones_like(size, dtype=torch.bool))
        q = torch.where(rows >= 0, alpha, -alpha)
    return q.view_as(w).to(w.dtype)


def _mean(size: Tensor, kept: Tensor) -> Tensor:
    """Returns the mean of each row's kept entries, [out, 1]; 0 where none is kept.

    Computed in float64, where the mean of equal entries is exact.
    """
    total = size.where(kept, 0.0).sum(dim=1, keepdim=True, dtype=torch.float64)
    return (total / kept.sum(dim=1, keepdim=True).clamp(min=1)).to(size.dtype)


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True  # privacy=dp_sgd takes each sample's gradient by torch.func

    @staticmethod
    def forward(w: Tensor, kind: Kind, clip: bool) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return quantized(w, kind)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        w, _, clip = inputs
        if clip:
            ctx.save_for_backward(w.abs() <= 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (dq,) = grad_outputs
        for within in ctx.saved_tensors:
            dq = dq.where(within, 0.0)
        return dq, None, None


class _Layer(Replaced):
    """A layer that keeps the `weight` and `bias` of the layer that it replaces, under the same names."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, kind: Kind, clip: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        for name in layer.__constants__:  # in_features, kernel_size and their like, which a forward may read
            setattr(self, name, getattr(layer, name))
        self.kind: Kind = kind
        self.clip = clip

    def quantized(self) -> Tensor:
        if self.kind == "float":
            return self.weight
        q = _StraightThrough.apply(self.weight, self.kind, self.clip)
        assert isinstance(q, Tensor)
        return q

    def extra_repr(self) -> str:
        return f"weight={list(self.weight.shape)}, kind={self.kind}"


class QuantizedLinear(_Layer):
    """[..., in] -> [..., out]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.quantized(), self.bias)


class QuantizedConv2d(_Layer):
    """[n, in, h, w] -> [n, out, h', w']."""

    def __init__(self, layer: nn.Conv2d, kind: Kind, clip: bool) -> None:
        super().__init__(layer, kind, clip)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.groups = layer.groups

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.quantized(), self.bias, self.stride, self.padding, self.dilation, self.groups)


class Quantized(Adapt):
    """Weights of linear layers and convolutions are quantized where they are used."""

    def __init__(self, kind: Kind = "int8", ends: bool = False, clip: bool = False) -> None:
        """`kind`: of a weight as it is used. `ends`: the first and the last of these layers, too. `clip`: no gradient
        where |w| > 1, of kind=binary.
        """
        if clip and kind != "binary":
            raise ConfigError(
                f"adapt.clip=true: is for adapt.kind=binary, and adapt.kind={kind} has its largest weights among its "
                "levels. Choose adapt.clip=false, or adapt.kind=binary."
            )
        self.kind: Kind = kind
        self.ends, self.clip = ends, clip
        self._names: frozenset[str] = frozenset()  # of the weights that are quantized; each `apply` finds the same

    def apply(self, model: nn.Module) -> nn.Module:
        chosen = self._chosen(model)
        self._names = frozenset(f"{name}.weight" if name else "weight" for name in chosen.values())
        places = [(name, layer) for name, layer in model.named_modules(remove_duplicate=False) if layer in chosen]
        swapped: dict[nn.Module, nn.Module] = {layer: self._swapped(layer) for layer in chosen}
        for name, layer in places:
            if not name:
                return swapped[layer]
            model.set_submodule(name, swapped[layer])
        return model

    def _swapped(self, layer: nn.Linear | nn.Conv2d) -> nn.Module:
        if isinstance(layer, nn.Linear):
            return QuantizedLinear(layer, self.kind, self.clip)
        return QuantizedConv2d(layer, self.kind, self.clip)

    def _chosen(self, model: nn.Module) -> dict[nn.Linear | nn.Conv2d, str]:
        """The layers to quantize, with their names. Raises `ConfigError`."""
        every = dict(model.named_modules())
        found = {
            layer: name
            for name, layer in every.items()
            if isinstance(layer, nn.Linear | nn.Conv2d) and type(layer) in LAYERS and is_plain(layer, LAYERS)
        }
        taken = list(found.items()) if self.ends else list(found.items())[1:-1]
        if not taken:
            few = {0: "none", 1: "one", 2: "two"}[len(found)]
            raise ConfigError(
                f"adapt=quantized: quantizes linear layers and convolutions, and the model has {few}"
                + (
                    ", of which the first and the last stay float; adapt.ends=true quantizes these, too"
                    if found
                    else "; adapt=none"
                )
            )
        holders = Counter(id(weight) for each in every.values() for weight in each.parameters(recurse=False))
        for layer, name in taken:
            if holders[id(layer.weight)] > 1:
                others = [other for other, each in every.items() if getattr(each, "weight", None) is layer.weight]
                raise ConfigError(
                    f"adapt=quantized: {' and '.join(others)} have one weight (tied), and {name} alone would use it "
                    "quantized. Choose adapt.ends=false, where it is an end of the model, or untie them."
                )
            if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
                raise ConfigError(
                    f"adapt=quantized: the convolution {name} has padding_mode={layer.padding_mode!r}. Choose 'zeros', "
                    "or adapt=none."
                )
            if isinstance(every[name.rpartition(".")[0]], nn.TransformerEncoderLayer):
                raise ConfigError(
                    f"adapt=quantized: torch's TransformerEncoderLayer, which {name} is in, reads the weights of its "
                    "layers without calling them when it is evaluated, and would evaluate full ones. Choose another "
                    "model, or adapt=none."
                )
        return dict(taken)

    def merged(self, state: State) -> dict[str, Tensor]:
        return {name: quantized(w, self.kind) if name in self._names else w for name, w in state.items()}

    def nbytes(self, state: State) -> int:
        """Packed, with the scales of rows."""
        if self.kind == "float":
            return payload([*state.values()])
        packed = [_packed(state[name], BITS[self.kind]) for name in self._names]
        return sum(packed) + payload([w for name, w in state.items() if name not in self._names])


def _packed(w: Tensor, bits: int) -> int:
    return (prod(w.shape) * bits + 7) // 8 + SCALE * len(w)
