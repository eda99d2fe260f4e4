"""What is spent: Renyi differential privacy of the sampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, "Renyi
Differential Privacy of the Sampled Gaussian Mechanism", arXiv 1908.10530), summed over steps and converted to (epsilon,
delta) by Balle et al. 2020 (arXiv 1905.09982, theorem 21). The figures are those of opacus, an optional package.
"""

import math
import warnings
from functools import lru_cache
from types import ModuleType

from ...compat import opacus
from ...conf.errors import ConfigError
from ...strategies.core.errors import MissingToolError
from ...strategies.core.privacy import Budget, Privacy

ORDERS = [1 + x / 10 for x in range(1, 100)] + [*range(12, 64), 80, 96, 128, 192, 256, 512]
LARGEST = 1e4  # sigma
CLOSE = 1e-4  # relative, of a sigma that is looked for


def delta_of(privacy: Privacy, budget: Budget) -> float:
    return budget.units**-1.1 if privacy.delta is None else privacy.delta


def epsilon_of(privacy: Privacy, budget: Budget) -> float:
    """Had batches been drawn, each unit with probability `rate`, or as they are. Raises `MissingToolError`."""
    return _epsilon(budget.rate, privacy.noise, budget.steps, delta_of(privacy, budget))


def epsilon_as_dealt(privacy: Privacy, budget: Budget) -> float:
    """Whoever is in which release, as long as nobody is in more than `passes`; that of drawn batches, where they are.

    Raises `MissingToolError`.
    """
    if budget.passes is None:
        return epsilon_of(privacy, budget)
    return _epsilon(1.0, privacy.noise, budget.passes, delta_of(privacy, budget))


def noise_for(privacy: Privacy, budget: Budget) -> float:
    """The least sigma, to CLOSE, with which no more than `privacy.epsilon` is spent.

    Raises `ConfigError` or `MissingToolError`.
    """
    assert privacy.epsilon is not None
    delta = delta_of(privacy, budget)

    def spent(sigma: float) -> float:
        return _epsilon(budget.rate, sigma, budget.steps, delta)

    low, high = 1e-2, 1.0
    while spent(high) > privacy.epsilon:
        low, high = high, 2 * high
        if high > LARGEST:
            raise ConfigError(
                f"privacy.epsilon={privacy.epsilon:g}: no noise up to {LARGEST:g} times privacy.clip spends so little "
                f"in {budget.steps:,} steps at delta {delta:.2g}. Choose a larger epsilon, or fewer epochs."
            )
    while high > low * (1 + CLOSE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > privacy.epsilon else (low, middle)
    return high


@lru_cache(maxsize=4096)
def _epsilon(rate: float, sigma: float, steps: int, delta: float) -> float:
    if steps == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    rdp = _accountant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or the last: the figure holds all the same
        spent = rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=steps, orders=ORDERS)
        epsilon, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(float(epsilon), 0.0)


def _accountant() -> ModuleType:
    found = opacus.accountant()
    if found is None:
        raise MissingToolError(
            "privacy: what a run spends is computed by opacus, which is not installed; pip install 'paceline[privacy]'"
        )
    return found
