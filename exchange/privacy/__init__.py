"""Mechanisms of differential privacy, one file each. See strategies/core/privacy.py."""

from ...strategies.core.privacy import Budget, Privacy
from .dp_fedavg import DPFedAvg
from .dp_sgd import DPSGD
from .none import NoPrivacy

__all__ = ["DPSGD", "Budget", "DPFedAvg", "NoPrivacy", "Privacy"]
