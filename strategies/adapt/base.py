"""What is done to a model before it trains, whatever the strategy and the sync mode.

They see the model that `apply` returned: what in it wants no gradient does not travel, and has neither a gradient nor
an optimizer's state. All workers begin with the same weights, as all draw them from the run's seed or read them from
the same file, so that a frozen weight need not be sent either.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..base import payload

State = Mapping[str, Tensor]  # a whole model's, by name


@dataclass(frozen=True)
class Apart:
    """What training made beside the model that it began with, as another library reads it."""

    tensors: dict[str, Tensor]  # of adapter_model.safetensors
    config: dict[str, Any]  # of adapter_config.json


class Adapt(ABC):
    @abstractmethod
    def apply(self, model: nn.Module) -> nn.Module:
        """The model to train: `model` with its tensors under their names, some frozen, and others beside them.

        It works on the meta device too. What it draws at random is drawn after the model's own weights, which are
        those of a run without it. Raises `LayoutError`.
        """

    def added(self, names: frozenset[str]) -> frozenset[str]:
        """Of the tensors of a model from `apply`, by name, those that the model did not have before."""
        return frozenset()

    def merged(self, state: State) -> dict[str, Tensor]:
        """Of a state of the model from `apply` the state of the model as it was before, that computes the same."""
        return dict(state)

    def nbytes(self, state: State) -> int:
        """Bytes of what such a state comes to where it is put to use, maybe packed. It may be on the meta device."""
        return payload([*self.merged(state).values()])

    def apart(self, state: State) -> Apart | None:
        """What of such a state is saved by itself; None: nothing is."""
        return None
