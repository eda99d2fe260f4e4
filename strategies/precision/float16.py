"""Passes compute in float16, and the loss is scaled so that small gradients are not lost.

Micikevicius et al. 2018, "Mixed Precision Training" (ICLR; arXiv 1710.03740), sections 3.1 and 3.2: weights and
updates in float32 (core/precision.py), and a loss scale S that follows what gradients do (core/loss_scale.py).
Numbers of less than 2^-24 are zero in float16, and above 65504 infinite: gradients are often below the first.

Equation: g = (1/S) dL'/dw, L' = S L; a step with a gradient that is not finite is left out, and S halved.

Cost: as with precision=bf16; among w workers that leave a step out together, all_reduce 2 (w-1)/w 4 bytes, after
backward.

Use it where the hardware has units for float16 and none for bfloat16 (V100, T4), or where the three more bits of
fraction are wanted. Else precision=bf16 has no scale to look after.
"""

from typing import Annotated

import torch
from annotated_types import Ge

from ...conf.errors import ConfigError
from ..core.loss_scale import LossScale
from ..core.precision import Precision


class Float16(Precision):
    name = "fp16"
    dtype = torch.float16

    def __init__(self, scale: Annotated[float, Ge(1)] = 65536.0, grow_every: Annotated[int, Ge(1)] = 2000) -> None:
        """`scale`: S at the start, a power of two. `grow_every`: S doubles after so many steps without an overflow.

        Raises `ConfigError`.
        """
        if float(scale).hex().split("p")[0] != "0x1.0000000000000" or scale > 2.0**60:
            raise ConfigError(
                f"precision.scale={scale:g}: must be a power of two, at most 2^60, by which gradients are multiplied "
                f"and divided without rounding. Choose precision.scale={2 ** min(round(scale).bit_length() - 1, 60)}."
            )
        self.first, self.grow_every = float(scale), grow_every

    def scale(self) -> LossScale:
        return LossScale(self.first, self.grow_every)
