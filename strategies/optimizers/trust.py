"""Common code of LARS and LAMB: a step over a few tensors at a time, and the trust ratio of each of them.

A step goes several times through each tensor. On the CPU it takes a few tensors at a time, so that they are in the
processor's cache after the first time; elsewhere it takes all of them, which needs the fewest kernels.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...compat import foreach
from ...conf.errors import ConfigError

CACHED = 2**20  # bytes of parameters taken together on the CPU; about four times as many are gone through

SAFE = (1e-12, 1e15)  # of a norm: squares of entries that matter to it are within float32's range


# (group, parameters, their gradients, whether they get a trust ratio) -> None: the parameters are changed in place
StepOf = Callable[[dict[str, Any], list[Tensor], list[Tensor], bool], None]


@torch.no_grad()
def stepped(optimizer: Optimizer, name: str, step_of: StepOf, closure: Callable[[], Any] | None) -> Any:
    """A step on all of its parameters; returns what `closure` does. `name`: the optimizer's choice.

    Raises `ConfigError`.
    """
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in optimizer.param_groups:
        for parameters, gradients, adapts in taken_together(group, name):
            step_of(group, parameters, gradients, adapts)
    return loss


def taken_together(group: dict[str, Any], name: str) -> Iterator[tuple[list[Tensor], list[Tensor], bool]]:
    """Parameters of one dtype and device that have a gradient, their gradients, and whether they get a trust ratio.

    `name`: the optimizer's choice. Raises `ConfigError` where a gradient is sparse: its norm is not that of a whole
    tensor's gradient.
    """
    if any(param.grad is not None and param.grad.layout is not torch.strided for param in group["params"]):
        raise ConfigError(
            f"optimizer={name}: a gradient of this model is sparse, and the trust ratio is of whole tensors. Choose "
            "optimizer=sgd, or model.sparse_gradients=false."
        )
    runs: dict[tuple[torch.device, torch.dtype, bool], list[Tensor]] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        adapts = param.dim() > 1 or not group["exclude_vectors"]
        run = runs.setdefault((param.device, param.dtype, adapts), [])
        if run and param.device.type == "cpu" and sum(x.nbytes for x in run) + param.nbytes > CACHED:
            yield run, [_gradient(x) for x in run], adapts
            run = runs[param.device, param.dtype, adapts] = []
        run.append(param)
    for (_, _, adapts), run in runs.items():
        yield run, [_gradient(x) for x in run], adapts


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def norms(one: list[Tensor], other: list[Tensor]) -> tuple[Tensor, Tensor]:
    """[tensors] of each, in float64: squares of what a loss is scaled to, by 1e25 or 1e-25, are beyond float32.

    On the CPU a norm in float64 takes three times as long as one in float32, so that only those that need it are taken
    so. Elsewhere all are: to see which need it, one would wait for the device.
    """
    tensors = one + other
    if tensors[0].device.type != "cpu":
        found = torch.stack(foreach.norm(tensors, 2, torch.float64))
    else:
        wide = torch.promote_types(tensors[0].dtype, torch.float32)
        found = torch.stack(foreach.norm(tensors, 2, wide)).double()
        for i, norm in enumerate(found.tolist()):
            if not SAFE[0] < norm < SAFE[1]:
                found[i] = torch.linalg.vector_norm(tensors[i], dtype=torch.float64)
    return found[: len(one)], found[len(one) :]


def or_one(numerator: Tensor, denominator: Tensor) -> Tensor:
    """[tensors]: the ratio, and 1 where either is zero: of zero weights no rate would follow; they would stay zero."""
    return torch.where(numerator * denominator > 0, numerator / denominator, 1.0)


def scalars(values: Tensor, like: list[Tensor]) -> list[Tensor]:
    """One for each tensor, of its dtype, where the values are: a GPU need not be waited for."""
    return list(values.to(like[0].dtype).unbind())
