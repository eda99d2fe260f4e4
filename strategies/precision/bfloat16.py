"""Passes compute in bfloat16: 8 bits of exponent, as float32 has, and 7 of fraction.

Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training" (arXiv 1905.12322). It reaches as far as float32,
so that no gradient needs scaling. The weights stay float32, as updates of less than 2^-8 of a weight would be lost in
bfloat16; how: core/precision.py.

Equation: x -> the nearest of +-1.b1...b7 2^e, |error| <= 2^-8 |x|.

Cost: two bytes for what layers give, where float32 takes four, and two for a rounded copy of each entry of their
weights, which each pass keeps until its backward pass. What replicas send is as ever.

Use it on hardware with units for it (hardware that has a rate in bfloat16): it multiplies several times as fast and
keeps half as many bytes of activations. A CPU without such units is slower with it than without.
"""

import torch

from ..core.precision import Precision


class BFloat16(Precision):
    name = "bf16"
    dtype = torch.bfloat16
