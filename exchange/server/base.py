"""A server rule turns the mean change of the clients' weights in a round into new weights."""

from abc import ABC, abstractmethod

from torch import Tensor

from ...strategies.core.state import State


class ServerRule(ABC):
    """`plain`: the mean change is added whole: FedAvg."""

    plain: bool = False

    @abstractmethod
    def step(self, weights: Tensor, way: Tensor) -> None:
        """[n], w, in place; [n], Delta = the mean of all w_k - w, or what a robust rule makes of them."""

    def state_dict(self) -> State:
        """Returns the state that the rule keeps from one round to the next."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restores the state that `state_dict` returned."""

    def holds(self, size: int) -> int:
        """Stated bytes that it remembers for weights of `size` bytes."""
        return 0

    def buffers(self) -> list[Tensor]:
        return [each for each in self.state_dict().values() if isinstance(each, Tensor)]
