"""Reads which memory a torch tensor is in, how often it was written to, and its hooks: `_cdata`, `_version`, `_base`,
`_indices`, `_values`, `_backward_hooks` and `_post_accumulate_grad_hooks`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter


def storage_key(tensor: Tensor) -> int:
    """The same for all views of one storage; of another, once that one is freed, it may come again."""
    return tensor.untyped_storage()._cdata


def version_of(tensor: Tensor) -> int:
    """Returns a number that grows with each write in place that autograd sees, through any view."""
    return tensor._version


def base_of(tensor: Tensor) -> Tensor:
    """Returns the tensor that it is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def parts_of_sparse(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the indices and values of a sparse tensor as they are, where `coalesce` would sum those of one place."""
    return tensor._indices(), tensor._values()


def has_hooks(tensor: Tensor) -> bool:
    """Returns whether something is called when autograd has the tensor's gradient."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def unseen_writes(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Hides writes to these tensors from autograd, which takes what it saved of them for unchanged."""
    return _unsafe_preserve_version_counter(tuple(tensors))
