"""Distillation: the outputs of a teacher, a trained model that stays as it is, are learnt beside the labels.

    L = (1 - alpha) CE(y, softmax(z)) + alpha T^2 KL(softmax(v / T) || softmax(z / T))

Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network" (NIPS workshop; arXiv 1503.02531), section
2: z are the student's logits and v the teacher's, of the same inputs. A temperature T above 1 shows how the teacher
ranks the wrong classes; T^2 keeps gradients as large as at T = 1. The paper has the cross-entropy with soft targets in
place of KL, which differ by the teacher's own entropy, of which no gradient knows.

Use it where a small model is to come as near to a large one as its size allows.

Cost: nothing is sent for it, whatever the sync mode, as each replica has the teacher. A step makes one more forward
pass, the teacher's, which keeps nothing for backward but its logits.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ..batches import Fields, Samples
from ..conf.errors import ConfigError

Loss = Callable[[Tensor, Any], Tensor]  # of outputs and targets, a mean over predictions
LOGITS = "teacher"  # of the fields of a batch's targets


class Distillation:
    """A choice of the group: this one learns nothing beside the labels. `teacher`: a run; None: there is none."""

    teacher: str | None = None
    teaches: bool = False

    def loss(self, plain: Loss) -> Loss:
        """Returns a loss of outputs and the result of `taught`; `plain` is a loss of outputs and the original
        targets.
        """
        return plain


class Hinton(Distillation):
    def __init__(
        self,
        teacher: str | None = None,
        alpha: Annotated[float, Ge(0), Le(1)] = 0.9,
        temperature: Annotated[float, Gt(0)] = 4.0,
    ) -> None:
        self.teacher, self.alpha, self.temperature = teacher, alpha, temperature
        self.teaches = alpha > 0

    def loss(self, plain: Loss) -> Loss:
        def distilled(z: Tensor, targets: Samples) -> Tensor:
            assert isinstance(targets, Fields), "they were taught"
            y, v = targets.tensors["targets"], targets.tensors[LOGITS]
            return (1 - self.alpha) * plain(z, y) + self.alpha * soft_loss(z, v, self.temperature)

        return distilled


def soft_loss(z: Tensor, v: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(v / T) || softmax(z / T)), the mean over predictions, in nats. z, v: [..., classes].

    Raises ConfigError where student and teacher have other outputs.
    """
    if z.shape != v.shape:
        raise ConfigError(
            f"distillation.teacher: puts out {list(v.shape)} for a batch, and the model that is trained "
            f"{list(z.shape)}; must be the same"
        )
    log_q, log_p = (F.log_softmax(each.flatten(0, -2) / temperature, -1) for each in (z, v))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def taught(targets: Samples, logits: Tensor) -> Fields:
    """Targets with what the teacher says of the same samples; they are cut and moved together."""
    assert isinstance(targets, Tensor), "weighted data are refused"
    return Fields({"targets": targets, LOGITS: logits})
