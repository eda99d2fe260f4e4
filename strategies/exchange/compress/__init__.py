"""What travels in place of a vector: one file a rule. See base.py for what a rule must say of itself."""

from .atomo import Atomo
from .base import Compressor, Slot, Summed, UnreadableError, Vector, vector_of
from .cast import BFloat16, Float16
from .ef_signsgd import EFSignSGD
from .none import Dense
from .onebit import OneBit
from .powersgd import PowerSGD
from .qsgd import QSGD
from .signsgd import SignSGD
from .terngrad import TernGrad
from .topk import TopK

__all__ = [
    "QSGD",
    "Atomo",
    "BFloat16",
    "Compressor",
    "Dense",
    "EFSignSGD",
    "Float16",
    "OneBit",
    "PowerSGD",
    "SignSGD",
    "Slot",
    "Summed",
    "TernGrad",
    "TopK",
    "UnreadableError",
    "Vector",
    "vector_of",
]
