"""torch's count of the floating-point operations of one operator."""

from typing import Any

from torch.utils.flop_counter import flop_registry


def flops_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """0 of an operation that torch counts none of."""
    count = flop_registry.get(operation.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))
