"""Base of the averages of weights over steps: the steps that count, and the weight of the newest weights.

With w_1 the first weights that count, and w_n the n-th,

    a_1 = w_1,     a_n = a_{n-1} + weight(n) (w_n - a_{n-1})   for n > 1.

Training never reads the average. engine/features/averaging.py keeps, evaluates and saves it.
"""

from abc import ABC, abstractmethod


class Average(ABC):
    """Frozen: whoever keeps an average counts what is in it, so that a resumed run goes on exactly."""

    kept: bool = True  # False: what is trained is evaluated, and there is nothing to keep
    buffers: bool = False  # running statistics (buffers of floating point) are averaged like weights
    each_step: bool = True  # all weights are read and averaged in each step
    renews: bool = False  # running statistics are made anew for the averaged weights, by a pass over the training split

    @abstractmethod
    def counts(self, done: int, steps_per_epoch: int) -> bool:
        """Tells whether the weights after `done` steps, 1 or more, are in the average."""

    @abstractmethod
    def weight(self, n: int) -> float:
        """Returns the weight of the n-th weights that count, n > 1."""

    def check(self, steps: int, steps_per_epoch: int) -> None:
        """Raises `ConfigError` where a run of so many steps would have nothing to average."""
