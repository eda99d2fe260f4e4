"""The interface of a sync mode: how replicas agree."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from .batch import Batch
from .clip import Clip, Counted
from .cost import Cost, Memory, World
from .privacy import Privacy
from .schedule import CONSTANT, Rate, scaled
from .state import State
from .trial import Trial

SMALLER_RATE = "a smaller optimizer.lr may help"


class Measures(TypedDict, total=False):
    """What a sync mode measures beside the engine, as JSON: of one worker or server."""

    staleness: dict[int, int]  # pushes, by the versions that came between their fetch and them
    dropped: int  # gradients that were computed and not used
    lost: list[int]  # ranks whose death it has seen
    rounds: int  # FedAvg's, or FedBuff's steps, of the server
    left: int  # rounds that a client left before it could deliver
    entries: int  # other than 0 that a client delivered as whole numbers (secure), ...
    cut: int  # ... and of these the ones that were cut to the largest, or rounded to 0
    given_up: int  # likewise: rounds that too few clients came to the end of
    buckets: int  # bsp's, that gradients are summed in


# What an average of weights over steps (averages/) is kept of: what `Sync.consensus` gives, which replica 0 must know
# without a message; or each replica's own weights, of which the consensus is the plain mean over replicas.
Averages = Literal["consensus", "own"]


class StoppedBefore(Exception):
    """The run was told to stop: of those who meet in rounds nobody makes `step`, or a later one, and all made those
    before it.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Sync(ABC):
    """How replicas agree. `comm` spans the replicas' workers that hold the same part, then the servers.

    `servers`: for each part of the model. `synchronous`: replicas step together, so that all of them reach `consensus`
    at the same step. `weights_agree`: replicas are bit-identical after every update. `state_agrees`: so is what
    `state_dict` gives, so that replica 0 may save for all. `exact`: where weights agree, they are those of serial
    training on all samples of a step. `serial_alone`: one replica alone is serial training, bit for bit. `survives`:
    the others go on when a worker dies, as long as replica 0 and the servers live. `entrywise`: what an update makes of
    an entry depends on that entry of the replicas alone. `experts`: what is evaluated is no consensus, but the models
    of all replicas side by side, which `gathered` gives. They may be set by the constructor, from its knobs.
    """

    servers: int = 0
    period: int = 1  # steps from one exchange of replicas to the next; the last one may be missing
    max_parts: int | None = None  # that a replica may have; None for any number
    whole_rows: Literal["", "aggregate", "attack"] = ""  # so that it is 1: what looks at a replica's gradient whole
    over_parts: str = ""  # what it means for replicas of several parts, where that is not plain
    synchronous: bool = True
    steps_on_workers: bool = True  # workers hold optimizer state, not servers alone
    weights_agree: bool = True
    state_agrees: bool = True
    exact: bool = True
    serial_alone: bool = True
    survives: bool = False
    entrywise: bool = True
    experts: bool = False
    trial: Trial = Trial()
    server_stops: bool = False  # a run that is told to stop ends before a round, and the servers say before which
    stops_before: Callable[[int], bool] | None = None  # asked there of each round but the first; the engine sets it
    took_step: bool = True  # the last step's samples trained the model; False where its gradient came too late
    made_at: float = -inf  # on the fabric's clock; where others' clocks make it: see `consensus`
    steps_per_epoch: int = 1  # of the partition; the engine sets it before `prepare`
    shares_of_samples: Sequence[float] | None = None  # by replica; None: as many each; the engine sets it likewise
    backward_passes: int = 1  # of a step; the engine sets it before `memory` and `cost`
    clip: "Clip | None" = None  # of gradients; None where this mode has no use for it
    privacy: "Privacy | None" = None  # None where this mode has no use for it
    counted: "Counted | None" = None  # where a replica is several workers, and `clip` measures; the engine sets it
    rate: Rate = CONSTANT  # how the optimizer's goes over the run; the engine sets it before `prepare`
    may_begin_anew: bool = False  # all that training made is in weights and `state_dict`, and may be set back in a run
    one_rate: str = ""  # why its rate can follow no schedule, and what to choose for that; "" where it can
    steps_together: bool = False  # replicas step with one gradient: if it overflows on one of them, none does
    one_scale: str = ""  # why its gradients cannot be scaled (precision=fp16), and what to choose; "" where they can
    scaled: bool = False  # they are, and `skip` may be called; the engine sets it before `prepare`
    hooked: bool = True  # hooks of the parameters see the gradients of a backward pass
    averages: Averages | None = None  # see `Averages`; None: the consensus, where weights agree or it is asynchronous
    unaveraged: str = ""  # why no average of its weights is kept; "" where `averages` says how
    shows_mean: bool = False  # before `update` gradients are a replica's own, at `clip_gradients` the mean of all
    before_step: Callable[[], None] | None = None  # called with that mean, before it is clipped; the engine sets it
    centres: Tensor | None = (
        None  # [replicas, ...] of the samples of each, where they are `experts`; the engine sets it
    )
    parameters: dict[str, nn.Parameter]
    optimizer: Optimizer
    comm: Comm

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that this mode cannot step with; its parameters may be on the meta device.

        Raises `LayoutError`.
        """

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        """Refuse knobs of which nothing in the model can make use. `parts`: what is trained of each part of a replica.

        Raises `LayoutError`.
        """

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        """Take over these parameters, which all want gradients, and their optimizer.

        Servers are given a part of their own, like workers.
        """
        self.parameters, self.optimizer, self.comm = parameters, optimizer, comm

    def next_step(self, step: int) -> int:
        """The step that this worker takes next: `step`, or a later one when it is not to take part in those between."""
        return step

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """The step that is made within it, from `begin` to `update`, has `factor` times the optimizer's rate.

        A server is in no step of the loop's: what it steps with, it scales itself, by `rate`.
        """
        with scaled([self.optimizer], factor):
            yield

    def begin(self, batch: Batch) -> None:
        """A step begins, with this batch. Raises `StoppedBefore` where it does not, if `server_stops`."""
        self.optimizer.zero_grad()

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        """A backward pass from `roots` comes next; `last`: no other follows in this step."""

    def clip_gradients(self) -> None:
        """g <- clip(g), of what the parameters have: before a step with it, or a push of it.

        Called once a step, on all workers of a replica. Raises `LayoutError`, or `NotFiniteError`.
        """
        if self.before_step is not None:
            self.before_step()
        if self.clip is not None and self.clip.clips:
            gradients = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
            self.clip.apply(gradients, self.comm.board.rank, self.counted)

    @abstractmethod
    def update(self) -> None:
        """After forward_backward: leave the parameters updated."""

    def skip(self) -> None:
        """In place of `update`, where a gradient overflowed (precision/scaling.py): no weight changes by this step's.

        On all replicas where they step together. Replicas that step by themselves keep to their rounds.
        """
        self.drop_gradients()
        self.update()

    def drop_gradients(self) -> None:
        """Optimizers leave alone what has none."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def may_help(self) -> str:
        """What to try where a loss, or weights, are no longer finite; the end of a sentence."""
        return SMALLER_RATE

    def prune(self, gone: Mapping[str, Tensor]) -> None:
        """Of parameters by name, True where weights, and their gradients, are 0 from now on, alike on all replicas.

        Called between steps, and after `load_state_dict`, where it `may_begin_anew`.
        """

    def serve(self) -> None:
        """A server worker's whole life."""
        raise AssertionError(f"{type(self).__name__} has no servers")

    def is_through(self, steps: int) -> None:
        """This worker takes no more of the run's `steps`. Raises `StoppedBefore` where the run ended before them."""

    def drain(self) -> None:
        """The last step is over on this worker: hand over what the others can use, before anybody is waited for."""

    def finish(self) -> None:
        """Training is over on this worker: leave the consensus in the parameters."""

    def consensus(self) -> dict[str, Tensor]:
        """This part's weights to evaluate.

        If `synchronous`, called on every replica, and workers may communicate. Else on replica 0 alone, which answers
        from what it has (the copy last fetched, the centre last seen), so that nobody is disturbed. After `finish`,
        it is what training made: the mean, the centre, the server's copy.

        `made_at`: on a server, when it last changed the weights; on replica 0, when the weights that `consensus` was
        sent were made, if that may be later than replica 0's own clock.
        """
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def gathered(self, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """Where replicas are `experts`: of this replica's whole state the state of what is evaluated, on replica 0;
        None elsewhere. Called on every replica, of one worker, where `consensus` is.
        """
        raise AssertionError(f"{type(self).__name__} has no experts")

    def gradients(self) -> dict[str, Tensor] | None:
        """What the last update stepped with, of this part's parameters by name; zeros for one that had no gradient.

        Where replicas agree (`exact`), that is the mean over the samples of all of them, whole. None where nobody holds
        it as such: servers step, or replicas share it out. Only `paceline verify` asks; all replicas are called.
        """
        if self.servers:
            return None
        return {name: _gradient_of(parameter) for name, parameter in self.parameters.items()}

    def state_dict(self) -> State:
        """What is saved beside the weights; called where `consensus` is.

        Where replicas step together and differ in anything (`synchronous`, and `weights_agree` or `state_agrees` does
        not hold), each replica saves its own weights and this; else replica 0 saves this beside the consensus.
        """
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """On every worker and server, with what this replica saved, or replica 0 where it alone did.

        The weights that were saved are back by then, each replica's own where each saved its own.
        """
        self.optimizer.load_state_dict(state["optimizer"])

    def buffers(self) -> list[Tensor]:
        """Communication buffers, for the memory account."""
        return []

    def stepped(self, parameters: Sequence[Tensor], replicas: int) -> list[Sequence[Tensor]]:
        """Of these parameters, those for which an optimizer keeps state: for each worker, where they differ."""
        return [parameters]

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        """Stated peak bytes of a worker by kind, where `held` is what a whole part with these parameters takes, with
        an optimizer's state for those of `stepped`.
        """
        return held

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """Stated peak bytes by kind of the server that holds most, where `held` is what a whole part with these
        parameters takes, with an optimizer's state for all of them, and a buffer of their size.
        """
        return held

    def measured(self, held: Memory) -> Memory:
        """Measured peak bytes of this worker by kind, where `held` counts the part's parameters, a gradient for each
        that is trained, the state of `optimizer`, activations, and `buffers`.
        """
        return held

    def report(self) -> Measures:
        """What else this worker measured."""
        return {}

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        """What these knobs do among so many replicas other than one may think, a sentence each; nothing is an error."""
        return []

    @abstractmethod
    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        """Stated traffic of one step, the mean over those of the run; only shapes and dtypes are looked at.

        What is sent once training is over (the mean that is left, a last round that is short) is none of it.
        """


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
