"""Finds out if an optimizer is element-wise: a step on a piece of a tensor is that piece of a step on the tensor.
Finds out too if it couples parameters, so that a step on some of them is not that part of a step on all.

An optimizer that looks at whole tensors may say so (`whole_tensors`). Others are tried on a small matrix, with their
own settings.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
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
    _check_untouched(optimizer, setting, instead, "pieces of tensors", "whole ones")
    generator = torch.Generator().manual_seed(0)
    weights, *gradients = torch.randn(4, 1, 1, 4, 6, generator=generator).unbind()  # of a group, of a parameter

    def cut(matrix: Tensor) -> list[Tensor]:
        return [piece.clone()[None, None] for piece in matrix.flatten().split([7, 17])]

    refused = ConfigError(
        f"{setting}: a worker steps on pieces of tensors, and {type(optimizer).__name__} is not element-wise: its step "
        f"on a whole tensor is another. Choose {instead}, or optimizer=adam, adamw or sgd."
    )
    if getattr(optimizer, "whole_tensors", False):  # at a small rate the trial would not tell
        raise refused
    for group in optimizer.param_groups:
        try:
            whole, in_place = _tried(optimizer, [group], weights, gradients)
        except Exception:
            return  # it does not take dense gradients, or wants a closure: whoever steps first says so better
        if not in_place:
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
            made = [_tried(optimizer, [group], piece, its)[0] for piece, *its in cuts]  # each as its owner would
            alike = _alike(torch.cat(made, dim=2).flatten(), whole.flatten())
        except Exception:
            alike = False
        if not alike:
            raise refused


def check_uncoupled(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` unless a few steps on two parameters of each group equal the same on one at a time.

    torch's own optimizers are not tried, and neither is one that draws random numbers: its steps are never the same.

    `setting`: that by which workers step on some of the parameters. `instead`: one by which each steps on all.
    """
    _check_untouched(optimizer, setting, instead, "some of the parameters", "all of them")
    if type(optimizer).__module__.startswith("torch."):
        return
    groups, generator = optimizer.param_groups, torch.Generator().manual_seed(0)
    weights, *gradients = torch.randn(4, len(groups), 2, 4, 6, generator=generator).unbind()
    gradients[1] *= 1000  # such as a norm that is limited would cut down
    try:
        with torch.random.fork_rng(devices=[]):
            both, again = (_tried(optimizer, groups, weights, gradients)[0] for _ in range(2))
    except Exception:
        return  # as above
    if not _alike(both, again):
        return
    try:
        alone = [
            _tried(optimizer, groups, weights[:, [k]], [gradient[:, [k]] for gradient in gradients])[0] for k in (0, 1)
        ]
        alike = _alike(torch.cat(alone, dim=1), both)
    except Exception:
        alike = False
    if not alike:
        raise ConfigError(
            f"{setting}: a worker steps on some of the parameters, and {type(optimizer).__name__} couples them: its "
            f"step on one by itself is another. Choose {instead}, or optimizer=adam, adamw or sgd."
        )


def check_unknowing(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` for an optimizer that keeps its parameters, or their ids, in a collection of its own, or
    that steps otherwise on parameters with the attributes that the user gave them.

    `setting`: that by which its parameters are exchanged for pieces, which it would not know.
    """
    if type(optimizer).__module__.startswith("torch."):
        return
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    of_groups = [item for group in optimizer.param_groups for item in group.items() if item[0] != "params"]
    kept = [item for item in vars(optimizer).items() if item[0] not in ("state", "param_groups")]
    for name, value in [*kept, *of_groups]:
        if not isinstance(value, list | tuple | Set | Mapping):
            continue
        every = [*value, *value.values()] if isinstance(value, Mapping) else value
        if any(id(each) in ids or (isinstance(each, int) and each in ids) for each in every):
            raise ConfigError(
                f"{setting}: a worker steps on pieces of tensors, which are other parameters, and "
                f"{type(optimizer).__name__} knows its own by {name!r}. Choose {instead}."
            )
    weights, *gradients = torch.randn(4, 1, 1, 4, 6, generator=torch.Generator().manual_seed(0)).unbind()
    for group in optimizer.param_groups:
        for marks in [vars(parameter) for parameter in group["params"] if vars(parameter)]:
            try:
                with torch.random.fork_rng(devices=[]):
                    marked, again, plain = (
                        _tried(optimizer, [group], weights, gradients, its)[0] for its in (marks, marks, {})
                    )
            except Exception:
                return
            if _alike(marked, again) and not _alike(marked, plain):
                raise ConfigError(
                    f"{setting}: a worker steps on pieces of tensors, which are other parameters, and "
                    f"{type(optimizer).__name__} looks at attributes of parameters ({', '.join(marks)}). Choose "
                    f"{instead}."
                )


def _check_untouched(optimizer: Optimizer, setting: str, instead: str, some: str, others: str) -> None:
    """Raises `ConfigError` for hooks and a replaced `step`."""
    if hooks_of(optimizer) or has_replaced_step(optimizer):
        raise ConfigError(
            f"{setting}: a worker steps on {some}, and hooks or a replaced step of {type(optimizer).__name__} may look "
            f"at {others}. Choose {instead}, or remove them before."
        )


def _alike(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def _tried(
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    weights: Tensor,
    gradients: Sequence[Tensor],
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Tensor, bool]:
    """`weights` [groups, parameters of each, ...] after steps with such `gradients` by an optimizer of the same kind
    and settings as `groups` have, and whether they are still in the same memory. `marks`: attributes of parameters.
    """
    twin = object.__new__(type(optimizer))
    params = [[nn.Parameter(each.clone()) for each in its] for its in weights]
    twin.__dict__ = {k: copy.copy(v) if isinstance(v, list | dict | set) else v for k, v in vars(optimizer).items()}
    twin.__dict__ |= {"param_groups": [], "state": defaultdict(dict)}
    twin.__dict__.pop("step", None)  # a schedule's counter, which would step with the optimizer itself
    for group, its in zip(groups, params, strict=True):
        twin.param_groups.append({**group, "params": its})
        if group.get("lr", RATE) < RATE:
            twin.param_groups[-1]["lr"] = RATE
        for known in [p for p in group["params"] if p in optimizer.state][:1]:  # kept from the start, maybe on meta
            for param in its:
                state = optimizer.state[known].items()
                twin.state[param] = {key: _like(value, known, param) for key, value in state}
    every = [param for its in params for param in its]
    for param in every:
        vars(param).update(marks)
    starts = [param.detach() for param in every]  # keep their memory, which new one would take else
    for gradient in gradients:
        for param, its in zip(every, gradient.flatten(0, 1), strict=True):
            param.grad = its.clone()
        twin.step()
    after = torch.stack([param.detach() for param in every]).view_as(weights)
    return after, all(a.data_ptr() == b.data_ptr() for a, b in zip(every, starts, strict=True))


def _like(value: Any, of: Tensor, param: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return torch.ones_like(param.detach()) if value.shape == of.shape else torch.zeros(value.shape, dtype=value.dtype)
