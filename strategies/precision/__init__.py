"""In which numbers passes compute: one file a choice. See base.py."""

from .base import Precision
from .bfloat16 import BFloat16
from .float16 import Float16
from .float32 import Float32
from .scaling import LossScale

__all__ = ["BFloat16", "Float16", "Float32", "LossScale", "Precision"]
