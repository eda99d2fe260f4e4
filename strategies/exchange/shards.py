"""Parameters shared out among servers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from ..base import payload
from ..errors import LayoutError
from ..pipeline import balanced

T = TypeVar("T", bound=Tensor)


def runs_of(parameters: Sequence[T], servers: int) -> list[list[T]]:
    """Contiguous runs of whole parameters, one for each server, the one of most bytes as light as can be.

    Raises `LayoutError` when there are fewer parameters than servers.
    """
    if servers > len(parameters):
        raise LayoutError(
            f"sync.servers={servers}: each server takes whole parameters, and there are {len(parameters)}; "
            f"choose sync.servers <= {len(parameters)}"
        )
    cuts = balanced([payload([parameter]) for parameter in parameters], servers)
    return [list(parameters[a:b]) for a, b in pairwise([0, *cuts, len(parameters)])]
