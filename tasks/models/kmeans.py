"""k-means: k centres, of which the nearest stands for a sample (Lloyd 1982, "Least squares quantization in PCM").

Of n samples x, with a(x) the nearest of the centres c, the loss is the mean squared distance, and

    l = 1/n sum_x |x - c_a(x)|^2,      dl/dc = 2/n sum_{x: a(x) = c} (c - x) = 2/n (n_c c - sum_{x: a(x) = c} x)

(Bottou and Bengio 1995, "Convergence Properties of the K-Means Algorithms"). `shares` is added to
the distances in a way that leaves them as they are and makes n_c / n its gradient. From both follows the mean of each
centre's samples, which is Lloyd's next centre: optimizer=lloyd.

It begins with k-means++ (Arthur and Vassilvitskii 2007, section 2.2), or with k samples at random. Each worker draws
them from the whole training split, which all can read, by the run's seed: they are the same on all and for any
partition, and nothing is sent for them.
"""

from math import prod
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from ...batches import lone
from ...conf.errors import ConfigError
from ..base import DataSpec, Readable
from .checks import need_floats
from .unsupervised import Unsupervised


class KMeans(Unsupervised):
    """`centres` [k, d], d the numbers of a sample, and `shares` [k], of the samples that are each centre's.

    Raises ConfigError for data that are not numbers, and where there are fewer samples than centres.
    """

    iteration = "lloyd"

    def __init__(
        self,
        spec: DataSpec,
        k: Annotated[int, Ge(1)] = 10,
        start: Literal["kmeans++", "samples"] = "kmeans++",
        start_samples: Annotated[int, Ge(1)] = 10_000,
    ) -> None:
        """`start_samples`: centres are drawn from so many training samples, themselves drawn at random."""
        need_floats("kmeans", spec)
        if k > start_samples:
            raise ConfigError(
                f"model.start_samples={start_samples}: model.k={k} centres each begin in one of these samples. Choose "
                f"model.start_samples={k} or more, or model.k={start_samples} or less."
            )
        if spec.train_size is not None:
            _check_enough(k, spec.train_size)
        super().__init__()
        self.start, self.start_samples = start, start_samples
        self.labelled = spec.targets == "labels" and not spec.target_shape  # a label for each sample, to compare with
        self.centres = nn.Parameter(torch.zeros(k, prod(spec.input_shape)))
        self.shares = nn.Parameter(torch.zeros(k))

    @torch.no_grad()
    def begin(self, train: Readable) -> None:
        k = len(self.centres)
        some = torch.randperm(len(train))[: self.start_samples]
        _check_enough(k, len(train))
        x = lone(train.take(some).inputs).flatten(1)
        self.centres.copy_(plus_plus(x, k) if self.start == "kmeans++" else x[:k])

    def forward(self, x: Tensor) -> Tensor:
        # from among the centres, so that the squares that cancel are no larger than they need be
        origin = self.centres.detach().mean(dim=0)
        x, c = x.flatten(1) - origin, self.centres - origin  # [n, d], [k, d]
        # |x - c|^2 = |x|^2 - 2 x c + |c|^2
        squares = x.square().sum(1, keepdim=True) - 2 * x @ c.T + c.square().sum(1)  # [n, k]
        shares = self.shares.detach()
        # the mean of all samples, where each centre is that of its own
        mean = shares @ c.detach() / shares.sum().clamp(min=torch.finfo(shares.dtype).tiny)  # [d]
        spread = (x - mean).square().sum(1, keepdim=True)
        return torch.cat([spread, squares + (self.shares - shares)], dim=1)


def plus_plus(x: Tensor, k: int) -> Tensor:
    """[n, d] -> k of its rows: the first at random, each other one x with probability D(x)^2 / sum_x D(x)^2, with D(x)
    its distance to the nearest of those before. Raises ConfigError.
    """
    chosen = [int(torch.randint(len(x), ()))]
    squares = torch.full((len(x),), torch.inf, dtype=torch.float64)  # D(x)^2
    while len(chosen) < k:
        squares = torch.minimum(squares, (x - x[chosen[-1]]).double().square().sum(1))
        if not squares.any():
            _check_enough(k, len(chosen), repeated=len(x) - len(chosen))
        chosen.append(int(torch.multinomial(squares, 1)))
    return x[chosen]


def _check_enough(k: int, samples: int, repeated: int = 0) -> None:
    """`samples`: that differ from each other; `repeated`: how many more there are."""
    if k <= samples:
        return
    there = f"there are {samples:,} training samples"
    if repeated:
        there = f"of the {samples + repeated:,} samples that centres are drawn from {repeated:,} repeat another one"
    raise ConfigError(
        f"model.k={k}: each centre begins in a sample of its own, and {there}. Choose model.k of "
        f"{'1' if samples == 1 else f'1 to {samples}'}."
    )
