"""Reads the registries of a torch module, `_parameters` and `_modules`, and puts other tensors in their place."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module


def registered(module: nn.Module) -> tuple[dict[str, nn.Parameter | None], dict[str, nn.Module | None]]:
    """The module's own dicts of parameters and of children, which change with it. To be read only."""
    return module._parameters, module._modules


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Gives `module` the `tensors` in place of its parameters and buffers of these names, and of those tied to them.

    `torch.func.functional_call` does the same for the length of one call.
    """
    return _reparametrize_module(module, dict(tensors), tie_weights=True)
