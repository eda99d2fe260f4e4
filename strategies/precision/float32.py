"""Passes compute in the dtype of the model's own weights.

Use it unless the hardware multiplies narrower numbers faster, or activations do not fit: it needs no care.

Equation: none is needed; nothing is rounded.

Source: IEEE 754-2019, binary32.
"""

from ..core.precision import Precision


class Float32(Precision):
    name = "fp32"
