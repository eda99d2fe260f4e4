"""Adversarial training: a replica learns its batch as it is, or as an attack changes it.

    min_w E max_{|d| <= eps} L(w, x + d, y)

Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks" (ICLR; arXiv 1706.06083), equation
2.1: the inner maximum by PGD, then a plain step on what it found. `fast`: Wong, Rice and Kolter 2020, "Fast is better
than free: Revisiting adversarial training" (ICLR; arXiv 2001.03994), algorithm 3: one step of 1.25 eps from a random
place (FGSM-RS), at about twice the cost of plain training in place of K + 1 times.

Cost: nothing is sent, whatever the sync mode: each replica attacks its own samples with the weights that it has. K
passes, forward and back to the inputs, come before the step's own. They keep what a step's own passes keep, and are
over before these begin.
"""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor, nn

from ...batches import Samples
from .attacks import Loss, default_step, pgd
from .threat import NORMS, NormName, Threat

FAST = 1.25  # eps, the step of FGSM-RS: Wong et al. 2020, section 5


class AdversarialTraining:
    """A choice of the group. `passes`: forward and back to the inputs, before each step's own."""

    passes: int = 0

    def change(
        self, model: nn.Module, loss: Loss, x: Tensor, y: Samples, samples: Tensor, told: Sequence[object]
    ) -> Tensor:
        """Returns the inputs to learn in place of `x` [n, ...]. `samples`: their numbers, int64 [n], from which random
        starts follow; `told`: other values from which these follow. `model` is left as it was, with its gradients.
        """
        return x


class StandardTraining(AdversarialTraining):
    """Samples are learnt as they are."""


class OnAttacks(AdversarialTraining):
    """Samples are learnt as an attack of `steps` steps leaves them, in a range that the engine knows: of the data."""

    def __init__(
        self,
        eps: Annotated[float, Ge(0)],
        norm: NormName,
        steps: int,
        step_size: float,
        random_start: bool,
        range: tuple[float, float],
    ) -> None:
        self.threat = Threat(NORMS[norm], eps, *range)
        self.passes, self.step_size, self.random_start = steps, step_size, random_start

    def change(
        self, model: nn.Module, loss: Loss, x: Tensor, y: Samples, samples: Tensor, told: Sequence[object]
    ) -> Tensor:
        start = None
        if self.random_start:
            start = self.threat.norm.start(samples.to(x.device), x.shape[1:], "adversarial training", *told)
        return pgd(model, loss, x, y, self.threat, self.passes, self.step_size, start)


class OnPGD(OnAttacks):
    """Madry et al. 2018. `eps`, `step_size`: shares of the data's range; `step_size` null: 2.5 eps / steps."""

    def __init__(
        self,
        range: tuple[float, float],
        eps: Annotated[float, Ge(0)] = 0.1,
        norm: NormName = "linf",
        steps: Annotated[int, Ge(1)] = 7,
        step_size: Annotated[float, Gt(0)] | None = None,
        random_start: bool = True,
    ) -> None:
        step = default_step(eps, steps) if step_size is None else step_size
        super().__init__(eps, norm, steps, step, random_start, range)


class Fast(OnAttacks):
    """FGSM-RS, Wong et al. 2020. `step_size` null: 1.25 eps; where it is more than 2 eps, training may fall into one
    that withstands FGSM and no PGD (catastrophic overfitting): evaluate with evaluate.attack=pgd.
    """

    def __init__(
        self,
        range: tuple[float, float],
        eps: Annotated[float, Ge(0)] = 0.1,
        norm: NormName = "linf",
        step_size: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(eps, norm, 1, FAST * eps if step_size is None else step_size, True, range)
