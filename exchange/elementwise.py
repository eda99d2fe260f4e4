"""Finds out if an optimizer is element-wise: a step on a piece of a tensor is that piece of a step on the tensor.

An optimizer that looks at whole tensors may say so (`whole_tensors`). Others are tried on a small matrix, with their
own settings.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..compat.optimizers import has_replaced_step, hooks_of
from ..conf.errors import ConfigError

RATE = 0.1  # of a trial, at least: by a warm-up that begins with 0, or a tiny rate, its steps would tell nothing


def check_rows(model: nn.Module, setting: str) -> None:
    """Raises `ConfigError` for a parameter or a gradient that `setting` cannot cut into rows."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(
                f"{setting}: parameter {name} is one number, and has no rows to cut up. Give it the shape [1]"
            )
        if not parameter.is_contiguous():
            raise ConfigError(
                f"{setting}: parameter {name} is not contiguous in memory, such as a transposed tensor or one in "
                "channels_last, and only contiguous ones are cut up. Choose strategy=data_parallel, or contiguous()."
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ConfigError(
                f"{setting}: the gradient of {name}.weight is sparse, and only dense ones are cut up. Choose "
                "strategy=data_parallel, or build the embedding with sparse=False."
            )


def check_elementwise(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` unless a few steps on a matrix equal the same on pieces of it.

    Hooks and a replaced `step` are refused without a trial, which would call them: they act on the real weights.

    `setting`: that by which parameters are cut. `instead`: one by which they are not.
    """
    if hooks_of(optimizer) or has_replaced_step(optimizer):
        raise ConfigError(
            f"{setting}: a worker steps on pieces of tensors, and hooks or a replaced step of "
            f"{type(optimizer).__name__} may look at whole ones. Choose {instead}, or remove them before."
        )
    generator = torch.Generator().manual_seed(0)
    weights, *gradients = torch.randn(4, 4, 6, generator=generator).unbind()

    def cut(matrix: Tensor) -> list[Tensor]:
        return [piece.clone() for piece in matrix.flatten().split([7, 17])]

    refused = ConfigError(
        f"{setting}: a worker steps on pieces of tensors, and {type(optimizer).__name__} is not element-wise: its step "
        f"on a whole tensor is another. Choose {instead}, or optimizer=adam, adamw or sgd."
    )
    if getattr(optimizer, "whole_tensors", False):  # at a small rate the trial would not tell
        raise refused
    for group in optimizer.param_groups:
        try:
            whole = _tried(optimizer, group, weights.clone(), gradients)
        except Exception:
            return  # it does not take dense gradients, or wants a closure: whoever steps first says so better
        if whole is None:
            raise ConfigError(
                f"{setting}: a worker steps on views of its weights, and {type(optimizer).__name__} puts new memory "
                "under a parameter, which would be lost. Let it change parameters in place (copy_, sub_), or choose "
                f"{instead}."
            )
        if torch.equal(whole, weights):
            raise ConfigError(
                f"{setting}: a trial step of {type(optimizer).__name__} on its parameters changed nothing, so that "
                "nobody can tell if pieces of tensors may step alone (an optimizer around another one steps with the "
                f"other's parameters). Choose {instead}."
            )
        try:
            cuts = zip(cut(weights), *map(cut, gradients), strict=True)
            made = [_tried(optimizer, group, piece, its) for piece, *its in cuts]  # each as its owner would
            pieces = torch.cat([each for each in made if each is not None])
            alike = torch.allclose(pieces, whole.flatten(), rtol=1e-4, atol=1e-6)
        except Exception:
            alike = False
        if not alike:
            raise refused


def _tried(optimizer: Optimizer, group: dict[str, Any], weights: Tensor, gradients: Sequence[Tensor]) -> Tensor | None:
    """`weights` after steps with `gradients` by an optimizer of the same kind and settings as `group` has; None if they
    are in new memory.
    """
    twin = object.__new__(type(optimizer))
    param = nn.Parameter(weights)
    its = {**group, "params": [param]}
    if its.get("lr", RATE) < RATE:
        its["lr"] = RATE
    twin.__dict__ = {**optimizer.__dict__, "param_groups": [its], "state": defaultdict(dict)}
    twin.__dict__.pop("step", None)  # a schedule's counter, which would step with the optimizer itself
    for known in [p for p in group["params"] if p in optimizer.state][:1]:  # kept from the start, maybe on meta
        twin.state[param] = {key: _like(value, known, param) for key, value in optimizer.state[known].items()}
    for gradient in gradients:
        param.grad = gradient.clone()
        twin.step()
    return param.detach() if param.data_ptr() == weights.data_ptr() else None


def _like(value: Any, of: Tensor, param: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return torch.ones_like(param.detach()) if value.shape == of.shape else torch.zeros(value.shape, dtype=value.dtype)
