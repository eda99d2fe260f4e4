"""What workers send that lie: one file an attack. See base.py."""

from .alie import ALittleIsEnough
from .base import Attack, Seen
from .constant import Constant
from .furthest import MinMax, MinSum
from .inner_product import InnerProduct
from .mimic import Mimic
from .noise import Noise
from .none import Honest
from .sign_flip import SignFlip

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Constant",
    "Honest",
    "InnerProduct",
    "Mimic",
    "MinMax",
    "MinSum",
    "Noise",
    "Seen",
    "SignFlip",
]
