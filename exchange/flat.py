"""A model's weights as one vector, so that one message carries them and one operation works on all of them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..conf.errors import ConfigError
from .buckets import views_of


def flatten(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Returns the parameters one after another, [n]. From here on they are views of it, in the order given.

    Raises `ConfigError` for parameters of several dtypes.
    """
    parameters = list(parameters)
    check_one_dtype(parameters)
    with torch.no_grad():
        flat = torch.cat([parameter.flatten() for parameter in parameters])
    for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
        parameter.data = view
    return flat


def check_one_dtype(parameters: Sequence[Tensor]) -> None:
    """Raises `ConfigError` when one vector cannot hold them all."""
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) > 1:
        raise ConfigError(
            f"sends all weights as one vector of one dtype, and the model has {len(dtypes)} "
            f"({', '.join(sorted(map(str, dtypes)))}); sync=bsp takes several",
            about=["sync"],
        )


def as_bytes(message: Tensor) -> Tensor:
    """[m] of any dtype -> its bytes, on the CPU."""
    return message.detach().cpu().contiguous().view(torch.uint8)
