"""Standing between torch and its operations, and what an operation says of itself."""

from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeTensorMode", "TorchDispatchMode", "results_of", "writes"]


def writes(operation: Any) -> bool:
    """Returns whether the operation changes one of its arguments."""
    return operation._schema.is_mutable


def results_of(operation: Any) -> int:
    """Returns the number of results; more than one come as a tuple."""
    return len(operation._schema.returns)
