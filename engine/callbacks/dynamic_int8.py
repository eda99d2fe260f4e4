"""Evaluates the weights in int8, for which they were not trained, at each evaluation.

Post-training dynamic quantization, torch's own: weights of nn.Linear layers are int8, with one scale a layer, and what
a layer is given is rounded to 7 bits, by its range, as it comes in: products are of integers. All else is float.

    y = s_w s_x (q_w (q_x - z_x)) + b

Source: Jacob et al. 2018 (arXiv 1712.05877), section 2; torch.ao.quantization.quantize_dynamic.
"""

from collections.abc import Mapping

import torch
from torch import nn

from ...compat.dynamic_quantization import dynamically_quantized
from ...strategies.core.copies import copied
from .base import Callback, EvaluationView, Metrics

CPU = torch.device("cpu")
SCALE = 4  # bytes a layer


class DynamicInt8(Callback):
    """The metric and the loss of the quantized model, and its bytes beside those of the float one."""

    def check_model(self, model: nn.Module) -> None:
        layers = _layers(model)
        if not layers:
            raise ValueError(
                "quantizes linear layers (torch.nn.Linear), and the model has none"
                " (adapt=quantized and adapt=lora have others in their place)"
            )
        for name, layer in layers.items():
            if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.TransformerEncoderLayer):
                raise ValueError(
                    f"torch's TransformerEncoderLayer, which {name} is in, reads its layers' weights without "
                    "calling them, and would find none; leave this callback out"
                )
            if layer.weight.dtype != torch.float32:
                raise ValueError(f"quantizes float32 weights, and {name}.weight is {layer.weight.dtype}")

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        model = view.model if view.device == CPU else copied(view.model).to(CPU)
        values = view.judge(dynamically_quantized(model), CPU)
        float_bytes, int8_bytes = sizes(model)
        return {
            **{f"int8_{name}": value for name, value in values.items()},
            **{
                "float_bytes": float_bytes,
                "int8_bytes": int8_bytes,
            },
        }


def sizes(model: nn.Module) -> tuple[int, int]:
    """Bytes of its tensors, and what they come to with an entry of 1 byte in each linear layer's weight."""
    held = {id(each): each for each in [*model.parameters(), *model.buffers()]}
    quantized = {id(layer.weight): layer.weight for layer in _layers(model).values()}
    others = [
        each
        for layer in model.modules()
        if type(layer) is not nn.Linear
        for each in [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    ]
    elsewhere = {id(each) for each in others}
    whole = sum(each.nbytes for each in held.values())
    given_up = sum(each.nbytes for key, each in quantized.items() if key not in elsewhere)
    return whole, whole - given_up + sum(each.numel() + SCALE for each in quantized.values())


def _layers(model: nn.Module) -> Mapping[str, nn.Linear]:
    """Returns the layers that torch quantizes. It selects them by their class itself."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and type(layer) is nn.Linear
    }
