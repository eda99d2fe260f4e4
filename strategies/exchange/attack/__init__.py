"""What workers send that lie: one file an attack. See base.py."""

from .base import Attack
from .none import Honest
from .sign_flip import SignFlip

__all__ = ["Attack", "Honest", "SignFlip"]
