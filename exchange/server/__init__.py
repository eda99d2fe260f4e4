"""Rules by which a federated server steps with the clients' deliveries: one file a rule. See base.py."""

from .adaptive import FedAdagrad, FedAdam, FedYogi
from .base import ServerRule
from .plain import PlainServer
from .sgd import ServerSGD

__all__ = ["FedAdagrad", "FedAdam", "FedYogi", "PlainServer", "ServerRule", "ServerSGD"]
