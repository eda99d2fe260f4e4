"""Each entry of a gradient that is larger than `max` is made that large (Mikolov 2012, "Statistical Language Models
Based on Neural Networks", PhD thesis, Brno University of Technology, section 3.2.2):

    g_i <- min(max(g_i, -max), max)

for each entry i by itself, which is torch.nn.utils.clip_grad_value_. Nothing has to be known of other entries, so that
it is the same wherever they are. The direction of the gradient changes.

Cost: nothing is sent. It goes through the gradient once.

Use it where a few entries are far too large and the rest should not be scaled down with them; else clip=norm, which
keeps the direction.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from ...strategies.core.clip import Clip, Counted, Shared, check_dense


class ByValue(Clip):
    def __init__(self, max: Annotated[float, Gt(0)] = 1.0) -> None:
        """`max`: the largest that an entry may be, of either sign."""
        self.max = max

    @torch.no_grad()
    def apply(
        self, gradients: Mapping[str, Tensor], worker: int, counted: Counted | None = None, shared: Shared | None = None
    ) -> None:
        check_dense(gradients, "value")
        for gradient in gradients.values():
            gradient.clamp_(-self.max, self.max)
