"""Communication among workers: fabrics, the byte ledger, the clock."""

from .base import Comm, ReduceOp, Work, nbytes
from .errors import HangError, MessageError, PeerLostError, RendezvousError
from .ledger import Ledger

__all__ = [
    "Comm",
    "HangError",
    "Ledger",
    "MessageError",
    "PeerLostError",
    "ReduceOp",
    "RendezvousError",
    "Work",
    "nbytes",
]
