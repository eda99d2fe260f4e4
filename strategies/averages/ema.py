"""An exponential moving average of the weights is evaluated (Polyak and Juditsky 1992, "Acceleration of Stochastic
Approximation by Averaging", who take the plain mean; with a decay as in Tarvainen and Valpola 2017, "Mean teachers are
better role models", arXiv 1703.01780, section 2).

After each step, with the decay d,

    a_1 = w_1,     a_n = d a_{n-1} + (1 - d) w_n

so that weights count for some 1 / (1 - d) steps. With `warmup` the decay of the first steps is smaller,

    d_n = min(d, (1 + t) / (10 + t)),     t = n - 1

and the average forgets where training began, as TensorFlow's ExponentialMovingAverage and timm's ModelEmaV3 do.

It is torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn, bit for bit.

Deviation from that: running statistics of batch norm are averaged as weights are, as timm does, and torch with
use_buffers=True; integers (how many batches were seen) are those of training. With buffers=false all of them are
training's, torch's default.

Cost: nothing is sent. Memory: the weights once more on the workers of the first replica, or of all where replicas
differ, and the running statistics. It reads and writes each of them once a step.

Use it where the loss of single batches is noisy and the rate does not fall to zero.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from .base import Average


@dataclass(frozen=True, kw_only=True)
class EMA(Average):
    """a_n = a_{n-1} + (1 - d_n) (w_n - a_{n-1})"""

    decay: Annotated[float, Ge(0), Lt(1)] = 0.99  # d
    warmup: bool = False
    buffers: bool = True  # type: ignore[misc] a knob of this one

    def counts(self, done: int, steps_per_epoch: int) -> bool:
        return True

    def weight(self, n: int) -> float:
        t = n - 1
        decay = min(self.decay, (1 + t) / (10 + t)) if self.warmup else self.decay
        return 1 - decay
