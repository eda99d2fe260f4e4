"""A client takes the steps of its optimizer and delivers its weights: FedAvg (McMahan et al. 2017, "Communication-
Efficient Learning of Deep Networks from Decentralized Data", AISTATS, Algorithm 1; arXiv 1602.05629).

    y <- y - eta g_k(y)

Cost: nothing beside the weights.

Use it first: it is what the others are compared with.
"""

from .base import ClientRule


class PlainClient(ClientRule):
    plain = True
