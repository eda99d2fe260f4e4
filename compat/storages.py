"""Which memory a torch tensor is in, and how often it was written to: `_cdata`, `_version` and `_base`."""

from torch import Tensor


def storage_key(tensor: Tensor) -> int:
    """The same for all views of one storage; of another, once that one is freed, it may come again."""
    return tensor.untyped_storage()._cdata


def version_of(tensor: Tensor) -> int:
    """It grows with each write in place that autograd sees, through any view."""
    return tensor._version


def base_of(tensor: Tensor) -> Tensor:
    """What it is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base
