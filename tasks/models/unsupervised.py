"""Models that learn of samples alone, each with a step of its own in place of gradient descent's.

Their gradient is chosen so that it holds, as means over samples, the sums that the step is made of. So whatever takes
the mean gradient of all replicas (an all-reduce, a server) is all that such a model needs to be trained by many.
"""

from abc import ABC

from torch import nn

from ..base import Readable


class Unsupervised(nn.Module, ABC):
    """[n, *input_shape] float -> [n, 1 + m]: squared distances of each sample.

    The first is that to the mean of the training samples, of which training learns nothing. The others are those to
    each of m things that may stand for a sample (a centre, a subspace), of which the nearest does: task=reconstruction.

    `iteration`: the choice of optimizer that makes the model's step of its gradient; it says the same of itself.
    """

    iteration: str

    def begin(self, train: Readable) -> None:
        """Take the weights that training begins with from training samples, where they come of them.

        Called once on each worker, with torch's generator in the same state, so that all begin alike. Raises
        ConfigError.
        """
