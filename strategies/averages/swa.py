"""Stochastic weight averaging: the plain mean of weights from late in the run is evaluated (Izmailov, Podoprikhin,
Garipov, Vetrov, Wilson 2018, "Averaging Weights Leads to Wider Optima and Better Generalization", UAI; arXiv
1803.05407, Algorithm 1).

From `start` on, after every c-th epoch (or step),

    w_SWA <- (w_SWA n_models + w) / (n_models + 1)

and at the end running statistics of batch norm are computed anew for w_SWA, by one more pass over the training data:
those of training belong to other weights. Here that is done before each evaluation, by the worker that evaluates,
outside of training's time. It is torch.optim.swa_utils.AveragedModel with get_swa_multi_avg_fn, and update_bn.

The paper's rate stays high while weights are averaged, constant or in cycles whose ends are c apart: that is the
business of `schedule`.

Deviation: where nothing counts yet, what is trained is evaluated.

Cost: nothing is sent. Memory: the weights once more on the workers of the first replica, or of all where replicas
differ. With batch norm, each evaluation takes a forward pass over the training split more.

Use it where training has come near its end with a rate that has not become small: points around an optimum have a mean
that is nearer to its middle than any of them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from ...conf.errors import ConfigError
from .base import Average


@dataclass(frozen=True, kw_only=True)
class SWA(Average):
    """weight(n) = 1 / n"""

    each_step = False
    renews = True

    start: Annotated[int, Ge(0)] = 3  # in `unit`: the weights then are the first that count
    every: Annotated[int, Ge(1)] = 1  # c, in `unit`
    unit: Literal["steps", "epochs"] = "epochs"

    def counts(self, done: int, steps_per_epoch: int) -> bool:
        length = self._length(steps_per_epoch)
        late = done - self.start * length
        return late >= 0 and late % (self.every * length) == 0

    def weight(self, n: int) -> float:
        return 1 / n

    def check(self, steps: int, steps_per_epoch: int) -> None:
        length = self._length(steps_per_epoch)
        first = (self.start or self.every) * length
        if first > steps:
            knob = f"average.start={self.start}" if self.start else f"average.every={self.every}"
            has = f"{steps:,} steps, {steps / steps_per_epoch:.3g} epochs" if length > 1 else f"{steps:,} steps"
            raise ConfigError(
                f"{knob}: the first weights to average would be those after {first:,} steps, and the run has {has}. "
                "Choose an earlier start, average.unit=steps, or more steps."
            )

    def _length(self, steps_per_epoch: int) -> int:
        return steps_per_epoch if self.unit == "epochs" else 1
