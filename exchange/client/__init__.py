"""Rules by which a federated client trains in a round, and the extra vectors that it delivers. See base.py."""

from .base import ClientRule
from .fednova import FedNova
from .fedprox import FedProx
from .mime_lite import MimeLite
from .plain import PlainClient
from .scaffold import Scaffold

__all__ = ["ClientRule", "FedNova", "FedProx", "MimeLite", "PlainClient", "Scaffold"]
