"""How workers reach each other: fabrics, the byte ledger, the clock."""

from .base import Comm, ReduceOp, Work, nbytes
from .errors import HangError, PeerLostError, RendezvousError
from .ledger import Ledger

__all__ = ["Comm", "HangError", "Ledger", "PeerLostError", "ReduceOp", "RendezvousError", "Work", "nbytes"]
