"""Clients that take more steps count for no more: FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency
Problem in Heterogeneous Federated Optimization", NeurIPS, equation 6 and section 4.2; arXiv 2007.07481).

    d_k = (w_k - w) / |a_k|_1                                 the change, by how many steps it is worth
    w <- w + tau sum_k p_k d_k,      tau = sum_k p_k |a_k|_1,      p_k = n_k / n over the round's clients

a_k says how often each of a client's gradients is in its change: (1, ..., 1) for SGD, so that |a_k|_1 is the number
of its steps, and with momentum rho

    |a_k|_1 = sum_t v_t,      v_t = rho v_{t-1} + 1,      v_0 = 0

which is [tau_k - rho (1 - rho^tau_k) / (1 - rho)] / (1 - rho). Under FedAvg clients of many samples count twice: by n_k
in the mean, and by the steps that they take. Where all take as many steps it is FedAvg, bit for bit.

The server makes w_k <- w + (tau / |a_k|_1) (w_k - w) of each delivery and then does as always, so that `aggregate`,
`server` and `compress` go with it. Under a robust rule tau is the median of the |a_k|_1 that clients state: one liar
can move their mean, and with it the rows of all honest clients, as far as it likes.

Deviations from the paper: v goes on from round to round where the optimizer's state does (sync.momentum=kept), and
begins at 0 where that begins anew, as the paper has it. Each step counts by its rate, where that follows a schedule;
Nesterov's momentum and dampening count as they work. Weight decay is not counted.

Cost: a client delivers one number more, 8 bytes a round.

Use it where clients take different numbers of steps: their data sets differ in size, or they do in speed.
"""

from collections.abc import Mapping
from statistics import median

from torch.optim import SGD, Optimizer

from ...conf.errors import ConfigError
from ...strategies.core.state import State
from .base import ClientRule


class FedNova(ClientRule):
    counts = True

    def __init__(self) -> None:
        self._v = 0.0  # how often the gradients so far are in the momentum
        self._length = 0.0  # |a_k|_1, times the rate

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not SGD:
            raise ConfigError(
                "counts how often each gradient is in a client's change of the weights, which has a formula "
                f"for SGD and its momentum, and {type(optimizer).__name__} divides gradients. Choose optimizer=sgd, or "
                "client=plain, fedprox or scaffold.",
                about=("client",),
            )

    def begin(self) -> None:
        self._length = 0.0

    def step(self, optimizer: Optimizer) -> None:
        group, fresh = optimizer.param_groups[0], not optimizer.state
        rho = float(group["momentum"])
        self._v = 1.0 if fresh or rho == 0 else rho * self._v + 1 - float(group["dampening"])
        self._length += float(group["lr"]) * (1 + rho * self._v if group["nesterov"] else self._v)
        optimizer.step()

    def length(self) -> float:
        return self._length

    def factors(self, weights: Mapping[int, float], lengths: Mapping[int, float], robust: bool) -> Mapping[int, float]:
        """tau / |a_k|_1, exactly 1 where all lengths are one and the same."""
        counted = [k for k in weights if weights[k] > 0 and lengths[k] > 0]
        if not counted:
            return dict.fromkeys(weights, 1.0)
        if robust:
            middle = median(lengths[k] for k in counted)
            return {k: middle / lengths[k] if k in counted else 1.0 for k in weights}
        unit = lengths[counted[0]]
        tau = sum(weights[k] * (lengths[k] / unit) for k in counted) / sum(weights[k] for k in counted)
        return {k: tau / (lengths[k] / unit) if k in counted else 1.0 for k in weights}

    def own_state(self, inside: bool) -> State:
        return {"v": self._v, "length": self._length}

    def load_own_state(self, state: State) -> None:
        self._v, self._length = state["v"], state["length"]
