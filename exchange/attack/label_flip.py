"""Flipped labels (Tolpegin et al. 2020, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS; arXiv
2007.08432; in this form Allouah et al. 2023, arXiv 2302.01772). Who lies trains on

    y~ = C - 1 - y                          y in 0, ..., C - 1

and sends honestly what its gradients, or its weights, are of that.

Use it for data that are wrong rather than a worker that is: rows look like those of a worker with other data.
"""

from torch import Tensor

from ...batches import Samples
from .base import Poison


class LabelFlip(Poison):
    def poisoned(self, inputs: Samples, targets: Tensor, classes: int) -> tuple[Samples, Tensor]:
        return inputs, classes - 1 - targets
