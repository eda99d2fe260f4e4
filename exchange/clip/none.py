"""A gradient is taken as it is.

Use it unless the loss jumps, or a norm that is looked at does.

Equation: g <- g.

Source: none is needed.
"""

from collections.abc import Mapping

from torch import Tensor

from ...strategies.core.clip import Clip, Counted, Shared


class Unclipped(Clip):
    clips = False

    def apply(
        self, gradients: Mapping[str, Tensor], worker: int, counted: Counted | None = None, shared: Shared | None = None
    ) -> None: ...
