"""The gradient noise scale: about how large a batch may become before it stops paying (McCandlish, Kaplan, Amodei 2018,
"An Empirical Model of Large-Batch Training", arXiv 1812.06162, equation 2.9 and appendix A.1).

With the gradient G of the whole loss and the covariance Sigma of the gradients of single samples,

    B_simple = tr(Sigma) / |G|^2

and a batch of B samples takes 1 + B_simple / B times the steps, and 1 + B / B_simple times the samples, that it takes
at least. B_simple is the batch at which both are twice that: the critical batch, where the curvature is the same in
all directions.

A gradient of B samples has E|G_B|^2 = |G|^2 + tr(Sigma) / B, so that two batch sizes give both, without bias:

    |G|^2     ~  (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(Sigma) ~  (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

G_small is a replica's own gradient (the mean of |G_small|^2 over replicas is taken), G_big the mean of all. The ratio
of two noisy numbers is no good estimate; as in the paper each has its exponential moving average first.
"""

from typing import Annotated, Any

from annotated_types import Ge, Lt
from torch import nn

from ...tasks.models.unsupervised import Unsupervised
from .base import Callback, Metrics, Norms, StepView


def estimates(norms: Norms) -> tuple[float, float]:
    """(|G|^2, tr(Sigma)), each without bias, and with that of one step's luck: either may be negative."""
    small, b, big, batch = norms.small, norms.batch_small, norms.big, norms.batch_big
    square = (batch * big - b * small) / (batch - b)
    trace = (small - big) / (1 / b - 1 / batch)
    return square, trace


class NoiseScale(Callback):
    """Records in the steps that it measures `noise_scale` (samples), and its parts, `gradient_square` (|G|^2) and
    `gradient_noise` (tr(Sigma)). There is no `noise_scale` while an average is not above zero yet.
    """

    sees = frozenset({"norms"})

    def __init__(self, every: Annotated[int, Ge(1)] = 1, decay: Annotated[float, Ge(0), Lt(1)] = 0.99) -> None:
        """`every`: steps from one that is measured to the next. `decay`: of the averages, for each that is."""
        self.every, self.decay = every, decay
        self.square = self.trace = self.weight = 0.0  # averages that begin at zero, and how much they have of 1

    def check_model(self, model: nn.Module) -> None:
        if isinstance(model, Unsupervised):
            raise ValueError("tells the batch of steps along a gradient, and this model's step is none; leave it out")

    def each_step(self, view: StepView) -> Metrics:
        if view.norms is None:
            return {}
        square, trace = estimates(view.norms)
        self.square = self.decay * self.square + (1 - self.decay) * square
        self.trace = self.decay * self.trace + (1 - self.decay) * trace
        self.weight = self.decay * self.weight + (1 - self.decay)
        told = {"gradient_square": self.square / self.weight, "gradient_noise": self.trace / self.weight}
        if self.square > 0 and self.trace > 0:
            told["noise_scale"] = self.trace / self.square
        return told

    def state_dict(self) -> dict[str, Any]:
        return {"square": self.square, "trace": self.trace, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.square, self.trace, self.weight = state["square"], state["trace"], state["weight"]
