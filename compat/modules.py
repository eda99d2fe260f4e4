"""Reads the registries of a torch module (parameters, children, hooks), and puts other tensors in their place."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.stateless import _reparametrize_module

from .storages import has_hooks

SETS_MODE = "sets_mode"  # an attribute of hooks that choose between training and evaluation, and do no more


def registered(module: nn.Module) -> tuple[dict[str, nn.Parameter | None], dict[str, nn.Module | None]]:
    """The module's own dicts of parameters and of children, which change with it. To be read only."""
    return module._parameters, module._modules


def buffers_in(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own dict of buffers, which changes with it. To be read only."""
    return module._buffers


def saved_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the buffers that the module's state has, with their names."""
    for path, each in module.named_modules():
        for name, buffer in each._buffers.items():
            if buffer is not None and name not in each._non_persistent_buffers_set:
                yield f"{path}.{name}".lstrip("."), buffer


def is_plain(module: nn.Module | None, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
    """Returns whether a call of `module` computes what one of `kinds` does: it has no forward of its own, no hooks and
    no parametrization.
    """
    if not isinstance(module, kinds):
        return False
    kind = next(each for each in type(module).__mro__ if each in (kinds if isinstance(kinds, tuple) else (kinds,)))
    own = type(module).forward is not kind.forward
    return is_as_its_class(module) and not (own or is_parametrized(module))


def hooked_parameters(module: nn.Module) -> Iterator[str]:
    """Returns the names of parameters with hooks on their gradients. A tensor in a parameter's place has none."""
    return (name for name, each in module.named_parameters() if has_hooks(each))


def is_as_its_class(module: nn.Module) -> bool:
    """Returns whether a call of `module` is its class's forward: the class has no `__call__` of its own, and nobody set
    a forward or hooks on the object, those that set its mode aside.
    """
    before = [each for each in module._forward_pre_hooks.values() if not hasattr(each, SETS_MODE)]
    hooks = module._forward_hooks, before, module._backward_hooks, module._backward_pre_hooks
    calls = type(module).__call__ is nn.Module.__call__
    return calls and "forward" not in vars(module) and not any(hooks)


def is_hooked_before(module: nn.Module) -> bool:
    """Returns whether something is called before the module's forward, as torch's norms of weights are."""
    return bool(module._forward_pre_hooks)


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Gives `module` the `tensors` in place of its parameters and buffers of these names, and of those tied to them.

    `torch.func.functional_call` does the same for the length of one call.
    """
    return _reparametrize_module(module, dict(tensors), tie_weights=True)
