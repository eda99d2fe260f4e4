"""The bytes of an optimizer's state, before anything is trained."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...conf.errors import ConfigError
from ..base import memory
from ..base.blame import place, said
from ..base.failures import speaks_for_itself
from ..base.meta import Repeats
from .feature import Parts


def optimizer_state(parts: Parts, parameters: list[nn.Parameter], stepped: Sequence[Tensor]) -> int:
    """Returns the bytes of an optimizer's state once `stepped`, some of the parameters, have been stepped.

    Raises `ConfigError`.
    """
    own, make_optimizer = {id(each) for each in stepped}, parts.make_optimizer
    wanted = [id(each) in own for each in parameters]
    if any(not each.is_meta for each in parameters):  # of a model that was tried on values, which stay as they are
        parameters = [nn.Parameter(torch.empty_like(each, device="meta"), each.requires_grad) for each in parameters]
    optimizer = make_optimizer(parameters)
    try:
        return _state_after_step(optimizer, parameters, wanted)
    except Exception as error:  # wants a closure, sparse gradients, ...
        if speaks_for_itself(error):
            raise
        try:  # or values: one tensor after another, for the memory
            return sum(
                _state_after_step(make_optimizer([real]), [real], [True])
                for each, is_own in zip(parameters, wanted, strict=True)
                if is_own and (real := nn.Parameter(torch.zeros_like(each, device="cpu"))) is not None
            )
        except Exception as on_values:
            where = place(on_values, parts.allowed)
            why = f"{where}: {said(on_values)}" if where else error
            raise ConfigError(f"optimizer: {type(optimizer).__name__} cannot be used here: {why}") from error


def _state_after_step(optimizer: Optimizer, parameters: list[nn.Parameter], own: list[bool]) -> int:
    with Repeats():
        for parameter, is_own in zip(parameters, own, strict=True):
            parameter.grad = torch.zeros_like(parameter) if is_own else None
        optimizer.step()
    return memory.held(memory.optimizer_state(optimizer))
