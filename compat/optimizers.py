"""Steps of torch's own optimizers without what `torch.optim` does around them: profiling, hooks that nobody has, the
choice among implementations, and the compiler's marks. They take longer than the arithmetic of a small model.

The operations on each tensor are those of `torch.optim`, so the results are the same bits.
"""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from .recording import below_autograd

_HOOKS: Any = sys.modules[Optimizer.__module__]  # has the hooks of all optimizers
_STEP: Any = SGD.step


def clear_gradients(of: Optimizer) -> None:
    """Does what `of.zero_grad()` does."""
    if type(of).zero_grad is not Optimizer.zero_grad:
        return of.zero_grad()
    for group in of.param_groups:
        for each in group["params"]:
            each.grad = None
    return None


def step(of: Optimizer) -> None:
    """Does what `of.step()` does."""
    if type(of) is not SGD or not _is_torchs(SGD.step) or _is_watched(of) or not all(map(_is_plain, of.param_groups)):
        of.step()
        return
    with below_autograd():
        for group in of.param_groups:
            _sgd(of, group)


def _is_torchs(method: Any) -> bool:
    """Returns whether this is the method that torch has. The first object of a class has torch wrap it."""
    return method is _STEP or (getattr(method, "hooked", False) and method.__wrapped__ is _STEP)


def _is_watched(of: Optimizer) -> bool:
    """Returns whether hooks are called before or after its steps, also by an attribute that stands in for `step`."""
    every = _HOOKS._global_optimizer_pre_hooks, _HOOKS._global_optimizer_post_hooks
    return any((of._optimizer_step_pre_hooks, of._optimizer_step_post_hooks, *every)) or "step" in vars(of)


def hooks_of(of: Optimizer) -> list[Any]:
    """Returns the functions that are called before or after its steps."""
    return [*of._optimizer_step_pre_hooks.values(), *of._optimizer_step_post_hooks.values()]


def has_schedule(of: Optimizer) -> bool:
    """Returns whether a schedule of torch's counts its steps."""
    return hasattr(of.step, "_wrapped_by_lr_sched")


def has_replaced_step(of: Optimizer) -> bool:
    """Returns whether an attribute stands in for `step`, other than the counter of torch's schedules."""
    step = vars(of).get("step")
    return step is not None and getattr(step, "__wrapped__", None) is not type(of).step


def _is_plain(group: dict[str, Any]) -> bool:
    """Returns whether `torch.optim.SGD` would take the parameters of a group one by one, by numbers alone."""
    if group["maximize"] or group["foreach"] or group["fused"] or group["differentiable"]:
        return False
    if isinstance(group["lr"], Tensor) or isinstance(group["momentum"], Tensor):
        return False
    if isinstance(group["dampening"], Tensor) or isinstance(group["weight_decay"], Tensor):
        return False
    return all(each.is_cpu and (each.grad is None or each.grad.layout is torch.strided) for each in group["params"])


def _sgd(of: Optimizer, group: dict[str, Any]) -> None:
    """Steps with the parameters of a group, with the names of `torch.optim.SGD`'s documentation."""
    rate, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
    for each in group["params"]:
        if (g := each.grad) is None:
            continue
        if decay != 0:
            g = g.add(each, alpha=decay)
        if momentum != 0:
            state = of.state[each]
            if (b := state.get("momentum_buffer")) is None:
                b = state["momentum_buffer"] = g.detach().clone()
            else:
                b.mul_(momentum).add_(g, alpha=1 - group["dampening"])
            g = g.add(b, alpha=momentum) if group["nesterov"] else b
        each.add_(g, alpha=-rate)
