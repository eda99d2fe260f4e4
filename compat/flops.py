"""torch's count of floating-point operations: of one operator, and of a forward pass by its layers."""

from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from torch.utils.module_tracker import ModuleTracker


def flops_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """0 of an operation that torch counts none of."""
    count = flop_registry.get(operation.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


class ForwardFlops(FlopCounterMode):
    """A FlopCounterMode for forward passes alone. torch's own hooks itself into the backward pass, too, and so refuses
    a model that calls torch.autograd.grad in its forward pass.
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _ForwardTracker()


class _ForwardTracker(ModuleTracker):
    def _fw_pre_hook(self, mod: nn.Module, input: Any) -> None:
        self._get_append_fn(self._get_mod_name(mod), False)()

    def _fw_post_hook(self, mod: nn.Module, input: Any, output: Any) -> None:
        self._get_pop_fn(self._get_mod_name(mod), False)()
