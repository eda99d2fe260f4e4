"""Rules that compress a vector before it is sent: one file a rule. base.py says what a rule must state of itself."""

from .atomo import Atomo
from .base import Compressor, Slot, Summed, UnreadableError, Vector, vector_of
from .cast import WireBFloat16, WireFloat16
from .demo import DeMo
from .dgc import DGC
from .ef_signsgd import EFSignSGD
from .masked import Masked
from .none import Dense
from .onebit import OneBit
from .powersgd import PowerSGD
from .qsgd import QSGD
from .randomk import RandomK
from .signsgd import SignSGD
from .sparseloco import SparseLoCo
from .terngrad import TernGrad
from .threshold import Threshold
from .topk import TopK

__all__ = [
    "DGC",
    "QSGD",
    "Atomo",
    "Compressor",
    "DeMo",
    "Dense",
    "EFSignSGD",
    "Masked",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "SignSGD",
    "Slot",
    "SparseLoCo",
    "Summed",
    "TernGrad",
    "Threshold",
    "TopK",
    "UnreadableError",
    "Vector",
    "WireBFloat16",
    "WireFloat16",
    "vector_of",
]
