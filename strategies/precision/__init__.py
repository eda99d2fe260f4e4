"""Number formats that passes compute in, one file each. See core/precision.py."""

from ..core.loss_scale import LossScale
from ..core.precision import Precision
from .bfloat16 import BFloat16
from .float16 import Float16
from .float32 import Float32

__all__ = ["BFloat16", "Float16", "Float32", "LossScale", "Precision"]
