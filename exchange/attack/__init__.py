"""Messages that Byzantine workers send: one file an attack. See base.py."""

from .alie import ALittleIsEnough
from .backdoor import Backdoor
from .base import Attack, Poison, Seen
from .constant import ConstantAttack, Infinite
from .furthest import MinMax, MinSum
from .inner_product import InnerProduct
from .label_flip import LabelFlip
from .mimic import Mimic
from .noise import Noise
from .none import Honest
from .sign_flip import SignFlip

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Backdoor",
    "ConstantAttack",
    "Honest",
    "Infinite",
    "InnerProduct",
    "LabelFlip",
    "Mimic",
    "MinMax",
    "MinSum",
    "Noise",
    "Poison",
    "Seen",
    "SignFlip",
]
