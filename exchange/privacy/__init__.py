"""Whose data a trained model may not give away, and what is done for it: one file a way. See core/privacy.py."""

from ...strategies.core.privacy import Budget, Privacy
from .dp_fedavg import DPFedAvg
from .dp_sgd import DPSGD
from .none import Open

__all__ = ["DPSGD", "Budget", "DPFedAvg", "Open", "Privacy"]
