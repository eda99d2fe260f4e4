"""A client rule: the step of a federated client in a round, the data it exchanges beside the weights, and their use by
the server.

There is one object on each client and one on the server. In a round

    client:  begin, step, step, ..., then `change` or `length` is delivered with w_k
    server:  `factors` of all deliveries, and `take` of what changed, once the round is closed
"""

from abc import ABC
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...strategies.core.protocols import SMALLER_RATE
from ...strategies.core.state import State
from ...strategies.core.terms import (
    ADDED_UP,
    HONEST,
    PLAIN_CLIENT,
    WEIGHTS_ALONE,
    Compatible,
    Need,
    Term,
    absent,
    required,
)


class ClientRule(Compatible, ABC):
    """`plain`: FedAvg's. `controls`: a vector more goes each way, `c` from the server with w, and `change` with w_k.
    `counts`: a client delivers one number more, `length`.
    """

    plain: bool = False
    controls: bool = False
    counts: bool = False
    weights: Tensor  # [n]: w, or w_k
    parameters: Sequence[nn.Parameter]  # views of it
    shares: Sequence[float]  # of all clients' samples, by client

    def prepare(self, weights: Tensor, parameters: Sequence[nn.Parameter], shares: Sequence[float]) -> None:
        self.weights, self.parameters, self.shares = weights, parameters, shares

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((PLAIN_CLIENT, self.plain), (WEIGHTS_ALONE, not (self.controls or self.counts)))

    @property
    def needs(self) -> tuple[Need, ...]:
        adds = "delivers a vector beside the weights, which is added up as it comes"
        return required((Need(ADDED_UP, adds), self.controls), (Need(HONEST, adds), self.controls))

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Checks a client's optimizer, whose parameters may be on the meta device. Raises `ConfigError`."""

    # -- on a client

    def begin(self) -> None:
        """Begins a round: the weights, and `c`, are those of the server."""

    def step(self, optimizer: Optimizer) -> None:
        """Steps with the gradients of the parameters, at least one of which has a gradient."""
        optimizer.step()

    def change(self) -> Tensor:
        """Returns [n], from which the server makes its next `c`. Called at the round's end if the rule `controls`."""
        raise AssertionError(f"{type(self).__name__} delivers no vector")

    def length(self) -> float:
        """Returns how far the client has gone, in a unit that all clients share.

        Called at the round's end if the rule `counts`.
        """
        raise AssertionError(f"{type(self).__name__} delivers no number")

    def may_help(self, optimizer: Optimizer) -> str:
        """Returns a remedy for a loss, or weights, of this client that are no longer finite; see `Sync.may_help`."""
        return SMALLER_RATE

    # -- on the server

    @property
    def c(self) -> Tensor:
        """Returns [n], which the server of a rule that `controls` sends with w; on a client, the fetched one."""
        raise AssertionError(f"{type(self).__name__} sends no vector")

    def factors(self, weights: Mapping[int, float], lengths: Mapping[int, float], robust: bool) -> Mapping[int, float]:
        """Returns how many times each client's change counts.

        Args:
            weights: By client, its weight in the mean.
            lengths: By client, the length that it states.
            robust: Whether some of the lengths may be lies.
        """
        return dict.fromkeys(weights, 1.0)

    def take(self, changes: Mapping[int, Tensor], weights: Mapping[int, float]) -> None:
        """Takes the vectors that clients delivered beside their weights in a round.

        Args:
            changes: By client, the vector.
            weights: By client, its share in the mean.
        """

    # -- state and cost

    def own_state(self, inside: bool) -> State:
        """Returns a client's state for a resumed run. `inside`: whether the client is inside of a round."""
        return {}

    def load_own_state(self, state: State) -> None:
        """Restores the state that `own_state` returned; inside of a round, after `begin`."""

    def server_state(self) -> State:
        """Returns the state that the server keeps from one round to the next, also for clients."""
        return {}

    def load_server_state(self, state: State, client: int | None) -> None:
        """Restores the state that `server_state` returned. `client`: the owner of this rule; None on the server."""

    def holds(self, size: int) -> int:
        """Stated bytes on a client whose weights are `size` bytes."""
        return 0

    def server_holds(self, size: int, clients: int) -> int:
        """Stated bytes on the server of so many clients."""
        return 0

    def buffers(self) -> list[Tensor]:
        return []


def dense_gradient(parameter: nn.Parameter) -> Tensor:
    """Returns the parameter's gradient, dense and to be changed in place; zeros if it has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
    return parameter.grad
