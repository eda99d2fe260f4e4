"""Reads the registries of a torch module: `_parameters` and `_modules`."""

from torch import nn


def registered(module: nn.Module) -> tuple[dict[str, nn.Parameter | None], dict[str, nn.Module | None]]:
    """The module's own dicts of parameters and of children, which change with it. To be read only."""
    return module._parameters, module._modules
