"""The two orthogonal choices: how one replica is laid over workers, and how replicas agree."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, call
from ..comm import Comm
from .errors import LayoutError
from .loss import Loss
from .mesh import Mesh
from .precision import Float32, Precision
from .schedules import Rate, scaled
from .schedules.base import CONSTANT

if TYPE_CHECKING:
    from .exchange.clip import Clip, Counted
    from .exchange.in_turn import Shares
    from .exchange.privacy import DPSGD, Privacy
    from .pipelining.simulate import Simulation

SMALLER_RATE = "a smaller optimizer.lr may help"
Traffic = Mapping[str, float]  # primitive -> payload bytes that leave one worker in one step
Memory = Mapping[str, int]  # kind -> bytes on a worker's device; "host_" + kind: in its host's memory instead
State = dict[str, Any]  # a tree of dicts and lists with tensors, numbers and strings in it; see state.py


@dataclass(frozen=True)
class Batch:
    """One replica's samples of one step. `size` may be 0: the last uneven batch need not reach every replica.

    Where samples are drawn by chance (`expected`), sums over them are divided by how many are expected, and not by how
    many there are: a mean would not be of a fixed number, and a batch without samples counts as any other.
    """

    inputs: Samples  # [size, ...]; several where a model takes several
    targets: Samples  # [size, ...]; with their weights where they have some, for the loss to make of them what it must
    total: int  # samples of this step over all replicas; on average, where they are drawn
    step: int = 0  # of the run, from 0
    of: int | None = None  # samples of the batch that this is a micro-batch of (accumulation.py); None: it is whole
    last: bool = True  # no other micro-batch follows in this step
    expected: float | None = None  # samples of the whole batch on average, where they are drawn; None: those it has

    @property
    def size(self) -> int:
        return len(self.targets)

    @property
    def counted(self) -> float:
        """What a sum over these samples is divided by: their number, or what is expected for as many of a batch."""
        if self.expected is None:
            return self.size
        return self.expected * self.size / self.of if self.of else self.expected

    @property
    def share(self) -> float:
        """n_j / sum_j n_j: the weight of this replica's mean gradient in the mean over all samples."""
        if self.expected is not None:
            return self.expected / self.total
        return (self.size if self.of is None else self.of) / self.total


@dataclass(frozen=True)
class World:
    """Among whom a sync mode's cost is stated, and over which run: the holders of one part of the model."""

    replicas: int
    steps_per_epoch: int | None = None  # None before the data are there
    hosts: tuple[int, ...] | None = None  # of each replica's holder, numbered in any way; None where it is not known
    steps: int | None = None  # of the run; None where it is not known: then costs are those of a run without end
    busy: tuple[tuple[int, int], ...] = ()  # (steps of the run with samples, replicas that have so many); (): all

    def often(self, every: int, first: int | None = None, with_samples: bool = False) -> float:
        """How often in a step, on average over the run and the replicas, happens what does in each one's steps `first`,
        `first` + `every`, ...; the first step is 1, and `first` None is `every`.

        `with_samples`: steps in which a replica has none are not counted.
        """
        if self.steps is None:
            return 1 / every
        begins = every if first is None else first
        counts = self.steps_of(with_samples)
        happens = sum(max(0, (steps - begins) // every + 1) * replicas for steps, replicas in counts)
        return happens / (self.steps * self.replicas)

    def steps_of(self, with_samples: bool) -> tuple[tuple[int, int], ...]:
        """(steps, replicas that have so many), where it is known how many steps there are."""
        assert self.steps is not None
        return self.busy if with_samples and self.busy else ((self.steps, self.replicas),)


@dataclass(frozen=True)
class Cost:
    """The closed-form cost of one step of an algorithm, by role, on average over the run."""

    worker: Traffic = field(default_factory=dict)
    server: Traffic = field(default_factory=dict)
    buffers: int = 0  # bytes of communication buffers on each of them
    varies: str = ""  # why nobody can say beforehand what is sent; "" where `worker` and `server` say it


@dataclass(frozen=True)
class Trial:
    """What the conformance suite must know of a class to try it fairly. Nothing else reads it."""

    beside: Mapping[str, object] = field(default_factory=dict)  # overrides without which it is refused
    alone: Mapping[str, object] = field(default_factory=dict)  # knobs without which it does not run on one replica
    of_64: Mapping[str, object] = field(default_factory=dict)  # overrides with which 64 workers learn digits
    optimizer: Mapping[str, object] = field(default_factory=dict)  # overrides, where it steps with its own alone
    model: Mapping[str, object] = field(default_factory=dict)  # overrides, of a strategy that takes images alone
    accuracy_lost: float = 0.02  # at most, to serial training on digits
    rounding: float = 1e-12  # from serial training in float64, where only the order of sums differs
    slow: bool = False  # it takes seconds to begin


BeforeBackward = Callable[[Sequence[Tensor], bool], None]  # Sync.before_backward


@dataclass(frozen=True)
class Pass:
    """A forward pass of one part, as a plan takes it on the meta device."""

    forward: Callable[[], Tensor]  # returns where backward begins: the loss, or what goes to the next part


class PassTime(NamedTuple):
    """What a batch through one part takes, in seconds, or anything in proportion."""

    forward: float
    backward: float
    to_input: float  # of `backward`, what the gradient of the input takes by itself


TimeOf = Callable[[int, Tensor, int], PassTime]  # (part, inputs on the meta device, chunk of the part)
MessageTime = Callable[[int, int, int], float]  # (bytes, from part, to part)


class Strategy(ABC):
    """How ONE replica is laid over workers: one, or those of a mesh (mesh.py), whose axes `axes` says.

    After `prepare`, `module` is this worker's part; its parameters are named as in the whole model, and are whole but
    for those that its layers say are split (placements.py).
    """

    axes: Mapping[str, int] = {}  # of one replica: {"stage": 4}, {"tensor": 2}
    loss_part: int = 0  # the part whose loss counts; it also gathers `full_state`
    bitwise: bool = True  # one replica is serial training bit for bit, and not but for the order of sums
    shares: bool = False  # parts hold some parameters in common, which every update must leave alike on them
    max_replicas: int | None = None
    runs_whole: bool = False  # `module` is the whole model, which may be run by others between two passes
    needs_processes: bool = False  # it talks to torch.distributed by itself
    fills: int = 1  # steps until a worker holds as many activations as it ever does
    precision: Precision = Float32()  # in which its passes compute; the engine sets it before `prepare`
    rounds_weights: bool = False  # it has a way of its own to compute in another precision, whose weights are rounded
    one_precision: str = ""  # why it computes in float32 alone, and what to choose for others; "" where it need not
    one_scale: str = ""  # why its gradients cannot be scaled (precision=fp16), likewise
    uncompiled: str = ""  # why its passes cannot be compiled (compile=true), likewise
    moves_model: bool = False  # moves the model to the device itself; the engine must not
    owns_update: str = "owns its update"  # said where `own_sync` leaves no choice
    trial: Trial = Trial()
    hosts: tuple[int, ...] | None = None  # of a replica's workers; the engine sets it before `cost`, where it is known
    across_replicas: str = ""  # what of it talks to other replicas in every step, as it is typed; "" where nothing does
    passes_together: bool = False  # replicas talk in forward and backward passes, and so make equally many of them
    own_micro_batches: str = ""  # the knob with which it cuts a batch into micro-batches; "" where it does not
    accumulated: int = 0  # of these, where each has its backward pass before the next one begins; 0 where not
    per_sample: bool = False  # it makes of `privacy` what a step's gradient is
    privacy: "DPSGD | None" = None  # where gradients are to be clipped sample by sample; the engine sets it
    unaveraged: str = ""  # why no average of weights over steps is kept, after the strategy's name; "" where it can be
    needs_shapes: bool = False  # computes shapes on the meta device as it trains, also where a replica is one worker
    one_input: str = ""  # why a sample must be one tensor, after the strategy's name; "" where it may be several
    whole_targets: str = ""  # why targets can have no weights, after the strategy's name; "" where they can
    across: Comm | None = None  # those who hold this part; the engine sets it before `prepare`, where it is asked for
    worlds: Sequence[World] = ()  # the same, of each part; the engine sets it before `cost`
    module: nn.Module

    @property
    def parts(self) -> int:
        """The workers of one replica."""
        return prod(self.axes.values())

    @property
    def mesh(self) -> Mesh:
        """Of the workers of one replica."""
        return Mesh(self.axes)

    def own_sync(self) -> "Sync | None":
        """The update, when it is not left to a sync mode (torch's DDP). Such a strategy takes sync=bsp only."""
        return None

    def settled(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        """The knobs that it chooses by the model and a replica's batch, which are on the meta device: once, before
        `split`, so that all workers have the same. Raises `LayoutError`.
        """
        return {}

    def split(self, model: nn.Module) -> list[nn.Module]:
        """The parts of `model`, in order; it works on the meta device too. Raises `LayoutError`."""
        return [model]

    def of_each_sample(self, part: int) -> str:
        """What a part has of each sample, in words, once `split` was called; "" where that is all of it."""
        return ""

    def layers(self, part: nn.Module) -> list[list[str]]:
        """What a part is made of, by name: runs of layers that follow one another in the model."""
        return [[name for name, _ in part.named_children()]]

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that cannot step on these parts; its parameters may be on the meta device.

        Raises `LayoutError`.
        """

    def make_ready(self, say: Callable[[str], None]) -> None:
        """On each host before workers start: what takes long, once, and is kept. Raises `MissingToolError`."""

    @abstractmethod
    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        """Keep this worker's part of `model`. `comm` spans the parts of this replica.

        `before_backward(roots, last)` must be called before each backward pass; see `Sync.before_backward`.
        """

    @abstractmethod
    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate the gradient of the batch's mean loss; returns that loss at `loss_part`, None elsewhere.

        With `accumulate` it is called for each micro-batch of a step, and `loss` has its weight in it.

        An empty batch leaves every gradient None and returns None. One that is empty by chance (`Batch.expected`) has
        the noise of `privacy` as its gradient, and returns None.
        """

    def passes(self, inputs: Samples) -> Iterator[Tensor]:
        """Yields the output of each forward pass through `module` of such a batch as `forward_backward` takes."""
        yield call(self.module, inputs)

    def part_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This part's state with `parameters` (by name) in place of its own; each tensor under one name."""
        return {**state_of(self.module), **parameters}

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The whole model's state at `loss_part`, None elsewhere; `parameters` are this part's, by name."""
        return self.part_state(parameters)

    def drain(self) -> None:
        """Finish what steps have left under way: weights are looked at next, or training is over."""

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        """The knobs with what a file holds in place of its name: a run shall depend on nothing beside its directory.

        `allowed`: the user's own modules whose code may run. Raises `LayoutError`.
        """
        return knobs

    def micro_sizes(self, batch_size: int) -> list[int]:
        """The micro-batches, in samples, whose activations a worker holds at once."""
        return [batch_size]

    def rehearse(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """The passes of a replica's batch, part by part: a plan takes those of one before it asks for the next.

        All is on the meta device, and nobody is there to talk to. `device`: that it will be trained on. What a strategy
        must know of a batch before `memory` is asked, it sees here. Raises `LayoutError`.
        """
        for part in parts:
            yield [Pass(lambda part=part: loss(call(part, inputs), targets))]

    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        """The most bytes that a part keeps for backward at any one time: here all forward passes come first.

        `kept`: what each of its passes in `rehearse` keeps beside what those before it keep. `again`: what there is
        more in the backward pass of each, where something is computed again.
        """
        return max(sum(kept[i:]) + more for i, more in enumerate(again))

    def simulate(
        self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime
    ) -> "Simulation | None":
        """How a replica's batch goes through its parts, where that follows a schedule. `inputs`: on the meta device."""
        return None

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        """Stated traffic within one replica, by part. `inputs`: a replica's batch on the meta device."""
        return [{} for _ in parts]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
        """What `cost` states, by the axis along which it is sent. A strategy with several axes says how much each."""
        return {axis: self.cost(parts, inputs) for axis in self.axes}

    def exchanges(self, parts: Sequence[nn.Module], inputs: Samples) -> list[list[Traffic]]:
        """What `cost` states, exchange by exchange, where one waits for each before it goes on; by part."""
        return [[traffic] if traffic else [] for traffic in self.cost(parts, inputs)]

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        """Of axes along which a worker sends to some others only: for each place on the axis, the places of these."""
        return {}

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        """Stated peak bytes of a worker by kind, where `held` is what the sync mode says that this part takes."""
        return held

    def measured(self, held: Memory) -> Memory:
        """Measured peak bytes of this worker by kind, where `held` is what the sync mode says that its tensors take."""
        return held


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

    def shares(self, replicas: int) -> "Shares | None":
        """How clients, to whom the data are dealt, are shared out over so many replicas; None where each is one."""
        return None

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


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers. A parameter that two layers share (tied weights) has its first name only.

    Raises `LayoutError` for extra state that is no tensor.
    """
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    again = {name for name, _ in module.named_parameters(remove_duplicate=False)} - parameters.keys()
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise LayoutError(
                f"model: its state has {name} of type {type(value).__name__}, and files of weights hold tensors. Keep "
                "it in a buffer"
            )
    return {**parameters, **{name: state[name] for name in state if name not in parameters and name not in again}}


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy what `state_of` gave into a module of the same kind. Raises `ValueError` when it is of another kind."""
    mine = state_of(module)
    if mine.keys() != state.keys():
        raise ValueError(f"the state differs from the model in {', '.join(sorted(mine.keys() ^ state.keys())[:5])}")
    module.load_state_dict(state, strict=False)


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Its direct children by name; one that comes twice is there twice, as it is not in `named_children`."""
    return {name: layer for name, layer in model.named_modules(remove_duplicate=False) if name and "." not in name}


def payload(tensors: Sequence[Tensor]) -> int:
    """S: the bytes of these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kept_of(state: int, parameters: Sequence[Tensor]) -> tuple[int, int]:
    """(bytes for each entry, bytes for each tensor) of an optimizer's `state`, where it keeps the same for all: what is
    of a parameter's shape and dtype, as momentum is, and what is less than that, as a count of steps is.
    """
    width = parameters[0].element_size()
    entries = max(sum(each.numel() for each in parameters), 1)
    each = width * (state // (width * entries))
    return each, (state - each * entries) // len(parameters)
