"""The interface of a sync mode: how replicas agree."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from .batch import Batch
from .clip import Clip
from .cost import Cost, Memory, World
from .privacy import Privacy
from .schedule import scaled
from .setting import Setting
from .state import State
from .trial import Trial


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


@dataclass(frozen=True)
class SyncTraits:
    """What holds of a sync mode. A class declares it; a constructor may change it by its knobs."""

    # How replicas step.
    synchronous: bool = True  # replicas step together, so that all of them reach `consensus` at the same step
    steps_together: bool = False  # replicas step with one gradient: if it overflows on one of them, none steps
    steps_on_workers: bool = True  # workers hold optimizer state, and not servers alone
    survives: bool = False  # the others go on when a worker dies, as long as replica 0 and the servers live
    server_stops: bool = False  # a run that is told to stop ends before a round, and the servers say before which

    # What weights are after an update.
    exact: bool = True  # where weights agree, they are those of serial training on all samples of a step
    serial_alone: bool = True  # one replica alone is serial training, bit for bit
    weights_agree: bool = True  # replicas are bit-identical after every update
    state_agrees: bool = True  # so is what `state_dict` gives, so that replica 0 may save for all
    entrywise: bool = True  # what an update makes of an entry depends on that entry of the replicas alone
    experts: bool = False  # what is evaluated is the models of all replicas side by side (`gathered`), and no consensus

    # What it can go together with. A text says why it cannot, and what to choose; "" where it can.
    max_parts: int | None = None  # the most parts that a replica may have; None for any number
    whole_rows: Literal["", "aggregate", "attack"] = ""  # the choice for which it is 1: it looks at whole gradients
    over_parts: str = ""  # what it means for replicas of several parts, where that is not plain
    one_rate: str = ""  # why its rate can follow no schedule
    one_scale: str = ""  # why its gradients cannot be scaled (precision=fp16)
    unaveraged: str = ""  # why no average of its weights is kept
    averages: Averages | None = None  # what an average is kept of; None: of the consensus, where weights agree
    may_begin_anew: bool = False  # all that training made is in weights and `state_dict`, and may be set back in a run
    hooked: bool = True  # hooks of the parameters see the gradients of a backward pass
    shows_mean: bool = False  # at `clip_gradients` gradients are the mean of all replicas, before it a replica's own


class Sync(ABC):
    """How replicas agree. `comm` spans the replicas' workers that hold the same part, then the servers.

    `servers`: how many there are for each part of the model.
    """

    traits = SyncTraits()
    servers: int = 0
    period: int = 1  # steps from one exchange of replicas to the next; the last one may be missing
    trial: Trial = Trial()
    took_step: bool = True  # the last step's samples trained the model; False where its gradient came too late
    made_at: float = -inf  # on the fabric's clock; where others' clocks make it: see `consensus`
    clip: "Clip | None" = None  # of gradients; None where this mode has no use for it
    privacy: "Privacy | None" = None  # None where this mode has no use for it
    setting: Setting = Setting()
    parameters: dict[str, nn.Parameter]
    optimizer: Optimizer
    comm: Comm

    def configure(self, setting: Setting) -> None:
        """Takes over what the run tells; called again when more is known (`Setting` says when)."""
        self.setting = setting

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that this mode cannot step with; its parameters may be on the meta device.

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

        A server is in no step of the loop's: what it steps with, it scales itself, by the `rate` of its setting.
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
        if self.setting.before_step is not None:
            self.setting.before_step()
        if self.clip is not None and self.clip.clips:
            gradients = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
            self.clip.apply(gradients, self.comm.board.rank, self.setting.counted)

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

    def serve(self) -> None:
        """A server worker's whole life."""
        raise AssertionError(f"{type(self).__name__} has no servers")

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
