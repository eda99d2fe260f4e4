"""Sums of which a server sees nothing but the sum: one file a way. See base.py, and protocol.py."""

from .base import Open, Secure
from .bonawitz import Bonawitz

__all__ = ["Bonawitz", "Open", "Secure"]
