"""An adaptation changes a model before or while it trains, with any strategy and sync mode.

Strategy and sync mode see the model that `apply` returned. A weight that wants no gradient is not sent, and has neither
a gradient nor optimizer state. All workers begin with the same weights, as all draw them from the run's seed or read
them from the same file, so that a frozen weight need not be sent either.

An adaptation may end before the run does, and another one follow it. Then the engine makes the model of the next one,
loads the weights learnt so far into it (`carried`), and begins again, with a new optimizer and without the state of the
strategy and the sync mode (engine/features/phases.py). So neither knows of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ...cost.transformer import Factors
from ..core.cost import payload
from ..core.terms import Compatible

if TYPE_CHECKING:
    from ...exchange.clip import Counted
    from ..core.strategy import Strategy
    from ..core.sync import Sync

State = Mapping[str, Tensor]  # a whole model's, by name


@dataclass(frozen=True)
class Apart:
    """The weights that training made beside the initial model, as another library reads them."""

    tensors: dict[str, Tensor]  # of adapter_model.safetensors
    config: dict[str, Any]  # of adapter_config.json
    kind: str = "adapter"  # the folder in the run directory, and the beginning of both names


@dataclass(frozen=True)
class AdaptContext:
    """The state of one worker as its model begins to train. Its sync mode is prepared."""

    module: nn.Module  # its part; tensors are named as in the whole model
    sync: "Sync"
    steps: int  # of one training
    redraw: Callable[[int], State]  # the whole model's, as it would begin with another seed
    counted: "Counted | None"  # where a replica is several workers


class While(ABC):
    """An action while a model trains, on one worker; all workers do it at the same steps."""

    @abstractmethod
    def acts_before(self, step: int) -> bool:
        """Says whether `before_step` does anything before this step. Steps are counted from 0."""

    @abstractmethod
    def before_step(self, step: int) -> None:
        """Acts between two steps, while nothing is under way: it may change weights and the sync mode's state.

        Called on all workers. Their messages here are not counted as training's.
        """

    @abstractmethod
    def after_update(self) -> None:
        """The sync mode has updated the weights; the step is not over yet."""

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """Returns the numbers to record beside each step and evaluation, and in the summary, by name."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Returns the tensors that it holds, for the memory account."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the state to save beside the part's weights."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The weights and the sync mode's state are back by then. Raises `ConfigError`."""


@runtime_checkable
class BesideFrozen(Protocol):
    """An adaptation that may train nothing but factors of one rank beside each linear layer."""

    def factors(self) -> Factors | None:
        """Returns them; None where it adapts some of the layers alone."""
        ...


def factors_of(adapt: "Adapt") -> Factors | None:
    return adapt.factors() if isinstance(adapt, BesideFrozen) else None


class Adapt(Compatible, ABC):
    """`trainings`: how often a run trains, one training after the other, each for as many steps as the run's `steps` or
    `epochs` say; a schedule of the rate begins anew with each. `prunes`: entries become 0 and stay so. `following`: the
    way that the run goes on with after as many steps as `lasts` says, in its one training; None: this one is all.
    """

    trainings: int = 1
    prunes: bool = False
    following: "Adapt | None" = None

    @abstractmethod
    def apply(self, model: nn.Module) -> nn.Module:
        """The model to train: `model` with its tensors under their names, some frozen, and others beside them.

        It works on the meta device too. What it draws at random is drawn after the model's own weights, which are
        those of a run without it. Raises `ConfigError`.
        """

    def added(self, names: frozenset[str]) -> frozenset[str]:
        """Returns the names of the tensors that `apply` added to the model, out of `names`."""
        return frozenset()

    def plain_shapes(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Returns the shapes of this model's tensors as the original model has them, beside those that were added."""
        return dict(shapes)

    def begun(self, state: State, names: frozenset[str]) -> dict[str, Tensor]:
        """Returns the state, with tensors of these `names`, that begins with a state of the original model."""
        return dict(state)

    def merged(self, state: State) -> dict[str, Tensor]:
        """Returns the state of the original model that computes the same as this state of the model from `apply`."""
        return dict(state)

    def nbytes(self, state: State) -> int:
        """Bytes of what such a state comes to where it is put to use, maybe packed. It may be on the meta device."""
        return payload([*self.merged(state).values()])

    def apart(self, state: State) -> Apart | None:
        """Returns the part of such a state that is saved by itself; None: nothing is."""
        return None

    def check(self, strategy: "Strategy", sync: "Sync", parts: Sequence[nn.Module], names: tuple[str, str]) -> None:
        """Refuses a strategy or sync mode that does not fit. `names`: of both, as chosen. Raises `ConfigError`."""

    def check_machine(self) -> None:
        """Refuses a machine that lacks a package which a run needs, and a plan does not. Raises `ConfigError`."""

    def check_steps(self, steps: int) -> None:
        """Refuse a training of so many steps. Raises `ConfigError`."""

    def begin(self, held: AdaptContext) -> While | None:
        """Begins on each worker that trains, once, before the first step and before a saved state is loaded.

        Raises `ConfigError`.
        """
        return None

    def holds(self, part: nn.Module) -> int:
        """Stated bytes of what `While.tensors` has at most, for this part."""
        return 0

    def kept(self, parameters: Mapping[str, Tensor]) -> list[list[int]] | None:
        """Returns, by training, the entries of each of a part's parameters that are not always 0.

        Returns None where only the run will tell. The sum is right; its split among the parameters may be unknown.
        """
        return [[each.numel() for each in parameters.values()]] * self.trainings

    def notes(self, steps: int | None) -> list[str]:
        """Returns its effects in a run of trainings of so many steps (None: the data decide), a sentence each."""
        return []

    def lasts(self, steps: int, steps_per_epoch: int) -> int:
        """Returns the steps, of a run of so many, that are made before `following` takes over.

        Raises `ConfigError` where the run is too short for that.
        """
        return steps

    def carried(self, model: nn.Module, state: State) -> dict[str, Tensor]:
        """Converts the whole state [on the CPU] of the adaptation before it to a state of `model`, from `apply`."""
        return dict(state)
