"""The interface of a sync mode: how replicas agree."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, final

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...compat.optimizers import clear_gradients
from ...conf.notes import Note
from .batch import Batch
from .clip import Clip
from .cost import Cost, Transfers, World
from .rejoining import Rejoins
from .setting import Setting
from .state import State
from .terms import (
    ALL_ALIVE,
    BACK,
    BY_ENTRY,
    CLIENT_ROUNDS,
    COMMON_ORIGIN,
    EQUAL_CLIENTS,
    EVERY_RATE,
    FOR_CHANGES,
    NEIGHBOURS,
    NO_SERVERS,
    OWN_STEPS,
    PLAIN_MEAN,
    PUSHES,
    RESETTABLE,
    ROWS_TOGETHER,
    SAME_GRADIENTS,
    SHOWN_GRADIENTS,
    SKIPS,
    STEP_GRADIENTS,
    SYNC_AVERAGED,
    TOGETHER,
    WHOLE_REPLICA,
    WHOLE_VECTORS,
    Compatible,
    Need,
    Term,
    absent,
    required,
)
from .trial import Trial


class Measures(TypedDict, total=False):
    """Measures of one worker or server that a sync mode takes beside the engine's, as JSON."""

    staleness: dict[int, int]  # pushes, by the versions that came between their fetch and them
    dropped: int  # gradients that were computed and not used
    lost: list[int]  # ranks whose death it has seen
    rounds: int  # FedAvg's, or FedBuff's steps, of the server
    left: int  # rounds that a client left before it could deliver
    entries: int  # other than 0 that a client delivered as whole numbers (secure), ...
    cut: int  # ... and of these the ones that were cut to the largest, or rounded to 0
    given_up: int  # likewise: rounds that too few clients came to the end of
    buckets: int  # bsp's, that gradients are summed in


# An average of weights over steps (averages/) is kept of `Sync.consensus`, which replica 0 must know without a message;
# or of each replica's own weights, if the consensus is their plain mean over replicas.
Averages = Literal["consensus", "own"]


# The rows that a rule for robust training is given: gradients of one step and version; of a clock, some of which may be
# missing; changes of weights since all had the same; weights of neighbours, which a worker joins for itself; pushes.
Aggregated = Literal["gradients", "clocks", "updates", "neighbours", "pushes"]


class StoppedBefore(Exception):
    """The run was told to stop: of those who meet in rounds nobody makes `step`, or a later one, and all made those
    before it.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class SyncTraits:
    """The declaration of a sync mode. A constructor may change it by the knobs."""

    # The steps of replicas.
    synchronous: bool = True  # replicas step together, so that all of them reach `consensus` at the same step
    steps_together: bool = False  # replicas step with one gradient: if it overflows on one of them, none steps
    steps_on_workers: bool = True  # workers hold optimizer state, and not servers alone
    survives: bool = False  # the others go on when a worker dies, as long as replica 0 and the servers live

    # The weights after an update.
    exact: bool = True  # where weights agree, they are those of serial training on all samples of a step
    serial_alone: bool = True  # one replica alone is serial training, bit for bit
    weights_agree: bool = True  # replicas are bit-identical after every update
    copies: bool = True  # each replica has its weights whole; else replicas hold pieces of one copy
    keeps_pieces: bool = False  # of the optimizer's state, in which `load_state_dict` may find tensors in a file
    state_agrees: bool = True  # so is what `state_dict` gives, so that replica 0 may save for all
    entrywise: bool = True  # what an update makes of an entry depends on that entry of the replicas alone

    drops_writes: bool = False  # what a forward pass writes to trained parameters would be lost, and is refused

    # Limits. A text says why something is impossible; "" stands for possible.
    whole_replica: str = ""  # why a replica must be one worker
    over_parts: str = ""  # what it means for replicas of several parts, where that is not plain
    one_rate: str = ""  # why its rate can follow no schedule
    one_scale: str = ""  # why its gradients cannot be scaled (precision=fp16)
    unaveraged: str = ""  # why no average of its weights is kept
    averages: Averages | None = None  # what an average is kept of; None: of the consensus, where weights agree
    may_begin_anew: bool = False  # all that training made is in weights and `state_dict`, and may be set back in a run
    waits_in_passes: bool = False  # workers wait for others within a pass: in hooks of parameters, or for memory
    hooked: bool = True  # hooks of the parameters see the gradients of a backward pass
    requires: tuple[Need, ...] = ()  # of other choices, beside what follows from the declarations above and below

    # What travels, and what a rule for robust training is given.
    plain_mean: bool = False  # the update is the mean of gradients in each step, which a library may make by itself
    sends_changes: bool = False  # changes of weights travel, and not gradients
    aggregates: Aggregated = "gradients"  # what a rule is given (exchange/aggregation.py)
    one_by_one: bool = False  # each row is used as it comes
    client_rounds: bool = False  # clients train by themselves for a round
    equal_clients: bool = True  # they are drawn with equal chances, and all finish their round

    # Features see and change gradients where a mode shows them (engine/features/feature.py, `Hooks.gradients`).
    shows_gradients: bool = True  # calls `clip_gradients` with each gradient that it steps with or pushes, whole
    shows_mean: bool = False  # at `clip_gradients` gradients are the mean of all replicas, before it a replica's own


class Sync(Compatible, ABC):
    """The way in which replicas agree. `comm` spans the replicas' workers that hold the same part, then the servers.

    `servers`: how many there are for each part of the model.
    """

    traits = SyncTraits()
    servers: int = 0
    period: int = 1  # steps from one exchange of replicas to the next; the last one may be missing
    trial: Trial = Trial()
    clip: "Clip | None" = None  # of gradients; None where this mode has no use for it
    setting: Setting = Setting()
    parameters: dict[str, nn.Parameter]
    optimizer: Optimizer
    comm: Comm

    @property
    def lacks(self) -> Mapping[Term, str]:
        traits = self.traits
        lacking = absent(
            (TOGETHER, traits.synchronous),
            (ALL_ALIVE, not traits.survives),
            (BACK, traits.synchronous or not traits.survives or isinstance(self, Rejoins)),
            (BY_ENTRY, traits.entrywise),
            (PLAIN_MEAN, traits.plain_mean),
            (OWN_STEPS, traits.exact and traits.weights_agree),
            (SHOWN_GRADIENTS, traits.shows_gradients),
            (RESETTABLE, traits.may_begin_anew),
            (NO_SERVERS, self.servers == 0),
            (WHOLE_VECTORS, self.servers <= 1),
            (SAME_GRADIENTS, traits.aggregates == "gradients"),
            (PUSHES, traits.aggregates == "pushes"),
            (NEIGHBOURS, traits.aggregates == "neighbours"),
            (COMMON_ORIGIN, traits.aggregates != "neighbours"),
            (ROWS_TOGETHER, not traits.one_by_one),
            (CLIENT_ROUNDS, traits.client_rounds),
            (STEP_GRADIENTS, not traits.client_rounds),
            (EQUAL_CLIENTS, traits.equal_clients),
        )
        unsaid = traits.averages is None and traits.synchronous and not traits.weights_agree
        whose = "does not say whose weights an average is of (SyncTraits.averages)" if unsaid else ""
        texts = {SYNC_AVERAGED: traits.unaveraged or whose, SKIPS: traits.one_scale, EVERY_RATE: traits.one_rate}
        return lacking | {term: text for term, text in texts.items() if text}

    @property
    def needs(self) -> tuple[Need, ...]:
        traits = self.traits
        return traits.requires + required(
            (Need(WHOLE_REPLICA, traits.whole_replica), bool(traits.whole_replica)),
            (Need(FOR_CHANGES, "sends changes of weights"), traits.sends_changes),
        )

    def configure(self, setting: Setting) -> None:
        """Takes over what the run tells; called again when more is known (`Setting` says when)."""
        self.setting = setting

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that this mode cannot step with; its parameters may be on the meta device.

        Raises `ConfigError`.
        """

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        """Take over these parameters, which all want gradients, and their optimizer.

        Servers are given a part of their own, like workers.
        """
        self.parameters, self.optimizer, self.comm = parameters, optimizer, comm

    def begin(self, batch: Batch) -> None:
        """A step begins, with this batch. Raises `StoppedBefore` where it does not (`InRounds`)."""
        clear_gradients(self.optimizer)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        """A backward pass from `roots` comes next; `last`: no other follows in this step."""

    def clip_gradients(self) -> None:
        """g <- clip(g), of what the parameters have: before a step with it, or a push of it.

        Called once a step, on all workers of a replica. Raises `ConfigError`, or `NotFiniteError`.
        """
        if self.setting.before_step is not None:
            self.setting.before_step()
        if self.clip is not None and self.clip.clips:
            gradients = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
            self.clip.apply(gradients, self.comm.key_values.rank, self.setting.counted)

    @abstractmethod
    def update(self) -> None:
        """Leaves the parameters updated. Called after `forward_backward`."""

    def skip(self) -> None:
        """Changes no weight by this step's gradient, as it overflowed (core/loss_scale.py). Stands in for `update`.

        On all replicas where they step together. Replicas that step by themselves keep to their rounds.
        """
        drop_gradients(self.parameters.values())
        self.update()

    def finish(self) -> None:
        """Training is over on this worker: leave the consensus in the parameters."""

    def consensus(self) -> dict[str, Tensor]:
        """Returns this part's weights to evaluate; where replicas hold pieces of one copy, on replica 0, {} elsewhere.

        If `synchronous`, called on every replica, and workers may communicate. Else on replica 0 alone, which answers
        from what it has (the copy last fetched, the centre last seen), so that nobody is disturbed. After `finish`,
        it is what training made: the mean, the centre, the server's copy.
        """
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def state_dict(self) -> State:
        """Returns what is saved beside the weights; called where `consensus` is.

        Where replicas step together and differ in anything (`synchronous`, and `weights_agree` or `state_agrees` does
        not hold), each replica saves its own weights and this; else replica 0 saves this beside the consensus.
        """
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Takes over what this replica saved, or replica 0 if it alone did. Called on every worker and server.

        The weights that were saved are back by then, each replica's own where each saved its own.
        """
        self.optimizer.load_state_dict(state["optimizer"])

    def buffers(self) -> list[Tensor]:
        """Communication buffers, for the memory account."""
        return []

    def report(self) -> Measures:
        """Returns the other measures of this worker."""
        return {}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        """Returns what may surprise somebody about these knobs among so many replicas, a sentence each.

        A `Note` is shown with the names of the choices that it is about, and a text as it is.
        """
        return []

    @abstractmethod
    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        """Returns the statement of what a step sends. Only shapes and dtypes are looked at.

        What is sent once training is over (the mean that is left, a last round that is short) is none of it.
        """

    @final
    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        """Returns the bytes of one step, the mean over those of the run, as `transfers` states them."""
        return self.transfers(parameters, world).cost(world, self.servers)


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Drops the gradients. Optimizers leave parameters without a gradient alone."""
    for parameter in parameters:
        parameter.grad = None
