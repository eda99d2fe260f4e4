"""DP-SGD (Abadi et al. 2016, "Deep Learning with Differential Privacy", CCS, Algorithm 1; arXiv 1607.00133). Of the
gradient g_i of each sample i of a step's batch of n samples over all replicas

    g_i <- g_i min(1, C / ||g_i||)                 clip, over all parameters together
    g = 1/n (sum_i g_i + N(0, sigma^2 C^2 I))      and add noise

and the optimizer steps with g. Each replica clips its own samples' gradients, and adds N(0, (n_j/n) sigma^2 C^2) to the
sum of its n_j: the noise is added by shares, which make N(0, sigma^2 C^2) in the sum of all. With accumulate=k
micro-batches have their shares in the same way.

With partition=poisson each sample is in a step's batch with probability q, as in the paper, and n is the number that is
expected, on each of K replicas n / K: sums are divided by it, and each replica's share of the noise is N(0, 1/K sigma^2
C^2), whatever was drawn. A step without samples is made with noise alone.

Gradients of `at_once` samples are computed together: a model's forward pass under torch's vmap, in which each sample
has the weights as a tensor of its own (a view), so that their gradients come apart. at_once=1 is a plain loop over
samples, for models that vmap refuses.

Deviations from the paper: with partition=shuffled a batch is so many samples of a shuffled epoch, where the paper draws
each sample with probability q. The accountant's epsilon holds for drawn batches, as in most published figures; beside
it stands the one that holds for the batches as dealt, in which each sample is once in an epoch. The noise follows from
the run's seed, so that a run repeats: who knows the seed can take it off again. C is divided by 1 + 1e-6, so that
rounding leaves no clipped gradient longer than C. clip=null with noise=0 is plain training, bit for bit.

Cost: nothing is sent beside what the sync mode sends. Memory of `at_once` gradients; on a CPU about three times the
time of a plain step for a small CNN, and many times that for a small MLP, whose plain step is one product a layer. The
virtual cluster counts the plain passes' time.

Use it where a model is given away and single samples must not be read out of it. Take a C near the median of gradients'
norms, large batches, and a small model: noise grows with the number of weights. Norms that mix samples (batch norm) are
refused.
"""

from typing import Annotated

from annotated_types import Ge

from ...conf.errors import ConfigError
from ...strategies.core.privacy import Above0, Privacy, Share, check_clipped, noise_of
from ...strategies.core.terms import ADDED_UP, HONEST, SAMPLE_GRADIENTS, STEP_GRADIENTS, UNCOMPRESSED, Need


class DPSGD(Privacy):
    of = "sample"

    def __init__(
        self,
        clip: Above0 | None = 1.0,
        noise: Annotated[float, Ge(0)] | None = None,
        epsilon: Above0 | None = None,
        delta: Share | None = None,
        at_once: Annotated[int, Ge(1)] | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`clip`, `noise`: C and sigma, None for 1. `epsilon`: finds sigma, in place of `noise`. `delta`: None for
        1 / n^1.1. `at_once`: samples whose gradients are held together; None for the batch, of drawn ones for
        as many as are expected. `seed`: of the noise.

        Raises `ConfigError`.
        """
        self.clip, self.noise = clip, noise_of(noise, epsilon)
        self.epsilon, self.delta = epsilon, delta
        self.at_once, self.seed = at_once, seed
        check_clipped(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        if not self.bounds:
            return ()
        hides = "hides a sample in the sum of all gradients, to which each replica adds a share of the noise"
        clips = "clips the gradient of each sample"
        others = (Need(term, hides) for term in (STEP_GRADIENTS, UNCOMPRESSED, ADDED_UP, HONEST))
        return Need(SAMPLE_GRADIENTS, clips), *others


def of_samples(privacy: Privacy | None) -> DPSGD | None:
    """Returns the mechanism that hides samples in the mean gradient; None where gradients stay plain.

    Raises `ConfigError` for a mechanism of another class.
    """
    if privacy is None or not privacy.bounds or privacy.of != "sample":
        return None
    if not isinstance(privacy, DPSGD):
        raise ConfigError(f"{type(privacy).__name__} hides samples, and is not derived from DPSGD", about=("privacy",))
    return privacy
