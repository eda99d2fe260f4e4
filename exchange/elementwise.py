"""Finds out if an optimizer is element-wise: a step on a piece of a tensor is that piece of a step on the tensor.
Finds out too if it couples parameters, so that a step on some of them is not that part of a step on all.

An optimizer that looks at whole tensors may say so (`whole_tensors`). Others are tried on small tensors, with their own
settings.
"""

import copy
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..compat.optimizers import has_replaced_step, hooks_of
from ..conf.errors import ConfigError
from ..strategies.core.state import own_entries

_DRAWS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
MOST = 64  # parameters of a trial
ENTRIES = 2**14  # of a trial's tensor, at most: some optimizers take large tensors otherwise
RATE = 0.1  # of a trial, at least: by a warm-up that begins with 0, or a tiny rate, its steps would tell nothing


def check_rows(model: nn.Module, setting: str) -> None:
    """Raises `ConfigError` for a parameter or a gradient that `setting` cannot cut into rows."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(
                f"{setting}: parameter {name} is one number, and has no rows to cut up. Give it the shape [1]"
            )
        if parameter.numel() == 0:
            raise ConfigError(
                f"{setting}: parameter {name} has no entries, and no rows to cut up. Remove it, or choose "
                "strategy=data_parallel."
            )
        if not parameter.is_contiguous():
            raise ConfigError(
                f"{setting}: parameter {name} is not contiguous in memory, such as a transposed tensor or one in "
                "channels_last, and only contiguous ones are cut up. Choose strategy=data_parallel, or contiguous()."
            )
    check_dense(model, setting, "cut up")


def check_dense(model: nn.Module, setting: str, handled: str) -> None:
    """Raises `ConfigError` for a sparse gradient. `handled`: what `setting` does with dense ones alone."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise ConfigError(
                f"{setting}: the gradient of {name}.weight is sparse, and only dense ones are {handled}. Choose "
                "strategy=data_parallel, or build the embedding with sparse=False."
            )


def check_elementwise(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` unless a few steps on a tensor equal the same on pieces of it, for the largest parameter of
    each number of dimensions.

    Hooks and a replaced `step` are refused without a trial, which would call them: they act on the real weights.

    `setting`: that by which parameters are cut. `instead`: one by which they are not.
    """
    _check_untouched(optimizer, setting, instead, "pieces of tensors", "whole ones")

    def cut(tensor: Tensor) -> list[Tensor]:
        return [piece.clone()[None, None] for piece in tensor.flatten().split(tensor.numel() * 5 // 7 or 1)]

    refused = ConfigError(
        f"{setting}: a worker steps on pieces of tensors, and {type(optimizer).__name__} is not element-wise: its step "
        f"on a whole tensor is another. Choose {instead}, or optimizer=adam, adamw or sgd."
    )
    if getattr(optimizer, "whole_tensors", False):  # at a small rate the trial would not tell
        raise refused
    inner = next((each for each in _inside(_own(optimizer), optimizer) if isinstance(each, Optimizer)), None)
    if inner is not None:
        raise ConfigError(
            f"{setting}: a worker steps on pieces of tensors, and {type(optimizer).__name__} steps with the parameters "
            f"of the {type(inner).__name__} in it, which are none. Choose {instead}."
        )
    for group in optimizer.param_groups:
        by_size = sorted(enumerate(group["params"]), key=lambda item: item[1].numel())
        for i, known in {each.dim(): (i, each) for i, each in by_size if each.numel()}.values():
            weights, gradients = _drawn(1, 1, *(min(side, round(ENTRIES ** (1 / known.dim()))) for side in known.shape))
            try:
                whole, in_place = _tried(optimizer, [group], weights, gradients, i)
            except Exception:
                continue  # it does not take dense gradients, or wants a closure: whoever steps first says so better
            if not in_place:
                raise ConfigError(
                    f"{setting}: a worker steps on views of its weights, and {type(optimizer).__name__} puts new "
                    "memory under a parameter, which would be lost. Let it change parameters in place (copy_, sub_), "
                    f"or choose {instead}."
                )
            if torch.equal(whole, weights):
                raise ConfigError(
                    f"{setting}: a trial step of {type(optimizer).__name__} on its parameters changed nothing, so that "
                    f"nobody can tell if pieces of tensors may step alone. Choose {instead}."
                )
            try:
                cuts = zip(cut(weights), *map(cut, gradients), strict=True)
                made = [_tried(optimizer, [group], piece, its, i)[0].flatten() for piece, *its in cuts]
                alike = _alike(torch.cat(made).view_as(whole), whole, weights)
            except Exception:
                alike = False
            if not alike:
                raise refused


def check_uncoupled(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` unless a few steps on the parameters of each group are those on the first one alone, and on
    the others alone.

    torch's own optimizers are not tried, and neither is one that draws random numbers: its steps are never the same.

    `setting`: that by which workers step on some of the parameters. `instead`: one by which each steps on all.
    """
    _check_untouched(optimizer, setting, instead, "some of the parameters", "all of them")
    if type(optimizer).__module__.startswith("torch."):
        return
    groups = [group for group in optimizer.param_groups if group["params"]]
    many = max(2, min(MOST // len(groups), *(len(group["params"]) for group in groups), MOST))
    weights, gradients = _drawn(len(groups), many, 4, 6)
    try:
        with torch.random.fork_rng(devices=[]):
            both, again = (_tried(optimizer, groups, weights, gradients)[0] for _ in range(2))
    except Exception:
        return  # as above
    if not _alike(both, again, weights):
        return
    try:
        alone = [
            _tried(optimizer, groups, weights[:, these], [each[:, these] for each in gradients], these.start)[0]
            for these in (slice(0, 1), slice(1, many))
        ]
        alike = _alike(torch.cat(alone, dim=1), both, weights)
    except Exception:
        alike = False
    if not alike:
        raise ConfigError(
            f"{setting}: a worker steps on some of the parameters, and {type(optimizer).__name__} couples them: its "
            f"step on one by itself is another. Choose {instead}, or optimizer=adam, adamw or sgd."
        )


def check_pieces(optimizer: Optimizer, make_piece: Callable[[Tensor, int], Tensor], setting: str, instead: str) -> None:
    """Raises `ConfigError` for an optimizer that steps on tensors, but not on `make_piece(tensor, dimension)`."""
    weights, gradients = _drawn(1, 1, 4, 6)
    pieces, *its = (make_piece(each, 2) for each in (weights, *gradients))
    for group in optimizer.param_groups:
        try:
            _tried(optimizer, [group], weights, gradients)
        except Exception:
            continue  # as above
        try:
            _tried(optimizer, [group], pieces, its)
        except Exception as error:
            raise ConfigError(
                f"{setting}: {type(optimizer).__name__} has an operation that torch lacks on a {type(pieces).__name__} "
                f"({str(error).splitlines()[0]}). Choose {instead}, or optimizer=adam, adamw or sgd."
            ) from error


def check_saved(optimizer: Optimizer, setting: str, instead: str) -> None:
    """Raises `ConfigError` for an optimizer that saves more than numbers under keys of its own.

    `setting`: that by which each worker has state of some parameters, or of pieces. `instead`: one by which it has all.
    """
    for key, value in own_entries(optimizer.state_dict()).items():
        number = value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, bool | int | float | str | None)
        if not number:
            raise ConfigError(
                f"{setting}: a worker steps on a share of the parameters, and {type(optimizer).__name__} saves "
                f"{key!r}, which is no number and may be of that share alone. Choose {instead}, or keep it in `state` "
                "or in the groups."
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
    for name, value in [*_own(optimizer).items(), *of_groups]:
        if any(id(each) in ids or (isinstance(each, int) and each in ids) for each in _inside(value, optimizer)):
            raise ConfigError(
                f"{setting}: a worker steps on pieces of tensors, which are other parameters, and "
                f"{type(optimizer).__name__} knows its own by {name!r}. Choose {instead}."
            )
    weights, gradients = _drawn(1, 1, 4, 6)
    for group in optimizer.param_groups:
        for marks in {repr(marks): marks for each in group["params"] if (marks := vars(each))}.values():
            try:
                with torch.random.fork_rng(devices=[]):
                    marked, again = (_tried(optimizer, [group], weights, gradients, 0, marks)[0] for _ in range(2))
            except Exception:
                continue
            if not _alike(marked, again, weights):
                continue
            try:
                alike = _alike(_tried(optimizer, [group], weights, gradients, 0, {})[0], marked, weights)
            except Exception:  # it wants them
                alike = False
            if not alike:
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


def _drawn(*shape: int) -> tuple[Tensor, list[Tensor]]:
    """Returns the weights and gradients of a trial. Weights are small, so that tiny steps count. Gradients have a
    direction in common. In the second a few entries, of the first parameter, are so long that a limit of the norm of
    all cuts the others down.
    """
    weights, common, *others = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0)).unbind()
    gradients = [common + each for each in others]
    gradients[1].flatten(1)[:, :24] *= 100
    return weights / 100, gradients


def _alike(a: Tensor, b: Tensor, before: Tensor) -> bool:
    """Returns whether the weights `before` have changed alike but for rounding."""
    rounding = torch.finfo(before.dtype).eps * float(max(each.abs().max() for each in (a, b, before)))
    return torch.allclose(a - before, b - before, rtol=1e-5, atol=8 * rounding)


def _own(optimizer: Optimizer) -> dict[str, Any]:
    """Returns an optimizer's attributes but for its groups, their state, and `step`, the counter of a schedule."""
    return {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups", "step")}


def _inside(value: object, outer: Optimizer) -> Iterator[object]:
    """Yields a value, and all that its attributes, collections and closures hold, but for what `outer` is known by."""
    seen, waiting = {id(each) for each in (outer, outer.state, outer.param_groups, *outer.param_groups)}, [value]
    while waiting:
        if id(each := waiting.pop()) in seen:
            continue
        seen.add(id(each))
        yield each
        match each:
            case Tensor() | type() | ModuleType():
                pass
            case Mapping():
                waiting += [*each, *each.values()]
            case list() | tuple() | Set() | deque():
                waiting += each
            case partial():
                waiting += [each.func, each.args, each.keywords]
            case MethodType():
                waiting.append(each.__self__)
            case FunctionType():
                waiting += [its.cell_contents for its in each.__closure__ or () if its != CellType()]  # none is empty
                waiting += each.__defaults__ or ()
            case _:
                waiting += getattr(each, "__dict__", {}).values()


def _tried(
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    weights: Tensor,
    gradients: Sequence[Tensor],
    first: int = 0,
    marks: Mapping[str, Any] | None = None,
) -> tuple[Tensor, bool]:
    """`weights` [groups, parameters of each, ...] after steps with such `gradients` by an optimizer of the same kind
    and settings as `groups` have, and whether they are still in the same memory.

    Args:
        first: The parameter of each group that the first weights stand for.
        marks: Attributes of the parameters; None: those that each has.
    """
    params = [[nn.Parameter(each.clone()) for each in its] for its in weights]
    twins: dict[int, list[nn.Parameter]] = {}
    for group, its in zip(groups, params, strict=True):
        known = group["params"][first : first + len(its)] or group["params"][-1:]
        twins |= {id(each): [param] for each, param in zip(known, its, strict=False)}
        twins[id(known[-1])] = its[len(known) - 1 :]
        for each in known:
            for param in twins[id(each)]:
                vars(param).update(_copied(vars(each) if marks is None else marks, {}))
    every = [param for its in params for param in its]
    twin = _twin(optimizer, twins, {key: its[0] for key, its in twins.items()})
    starts = [param.detach() for param in every]  # keep their memory, which new one would take else
    for gradient in gradients:
        for param, its in zip(every, gradient.flatten(0, 1), strict=True):
            param.grad = its.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a schedule in it, that step is another one
            twin.step()
    after = torch.stack([param.detach() for param in every]).view_as(weights)
    return after, all(a.data_ptr() == b.data_ptr() for a, b in zip(every, starts, strict=True))


def _twin(of: Optimizer, twins: Mapping[int, Sequence[nn.Parameter]], memo: dict[int, Any]) -> Optimizer:
    """Returns a copy of an optimizer, with copies of the optimizers in it, on `twins` of some parameters, by their id.

    `memo`: copies by the id of the original, as copy.deepcopy has them.
    """
    twin = memo[id(of)] = object.__new__(type(of))
    state = memo.setdefault(id(of.state), defaultdict(dict))
    for group in of.param_groups:
        its = [param for each in group["params"] for param in twins.get(id(each), ())]
        if not its or id(group) in memo:
            continue
        memo[id(group)] = {key: its if key == "params" else _copied(value, memo) for key, value in group.items()}
        if group.get("lr") is not None and group["lr"] < RATE:
            memo[id(group)]["lr"] = RATE
        for known in [each for each in group["params"] if each in of.state]:  # kept from the start, maybe on meta
            for param in twins.get(id(known), ()):
                state[param] = {key: _like(value, known, param) for key, value in of.state[known].items()}
    memo[id(of.param_groups)] = groups = [memo[id(group)] for group in of.param_groups if id(group) in memo]
    for each in _inside(_own(of), of):
        if isinstance(each, _DRAWS):
            memo[id(each)] = each  # another trial then draws others, which tells that steps are never the same
        elif isinstance(each, Optimizer) and id(each) not in memo:
            _twin(each, twins, memo)
    vars(twin).update({key: _copied(value, memo) for key, value in _own(of).items()}, state=state, param_groups=groups)
    return twin


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # what nobody can copy, such as a torch.Generator
        return value


def _like(value: Any, of: Tensor, param: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return torch.ones_like(param.detach()) if value.shape == of.shape else torch.zeros(value.shape, dtype=value.dtype)
