"""One worker's list of actions, carried out for one batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...batches import Samples, of_each
from ...comm import Comm, Work
from ...comm.timeline import TimedPass
from ...compat.storages import version_of
from ...conf.errors import ConfigError
from ..core.batch import BeforeBackward
from ..core.loss import Loss
from .actions import Action
from .chunks import Chunks, weights_of
from .split_backward import backward_to_input
from .updates import Updates

Key = tuple[int, int]  # a stage, and a micro-batch


@dataclass(frozen=True)
class PipelineWorker:
    """The state of a worker that runs actions, from step to step."""

    module: Chunks
    chunks: dict[int, int]  # its stages -> the chunk of `module` that each is
    holders: Sequence[int]  # the worker of each stage
    loss: Loss
    comm: Comm
    before_backward: BeforeBackward
    like: Callable[[int, Tensor], Tensor]  # (stage, a micro-batch of the data) -> an empty tensor as its output
    recompute: bool
    updates: Updates | None = None  # of a schedule without a flush

    def forward(self, stage: int, inputs: Tensor) -> Tensor:
        return forward(self.module, self.chunks[stage], inputs, self.recompute)


def forward(module: Chunks, chunk: int, inputs: Tensor, recompute: bool) -> Tensor:
    if not recompute:
        return module(inputs, chunk)
    before = version_of(inputs)
    output = checkpoint(module, inputs, chunk, use_reentrant=False)
    assert isinstance(output, Tensor)
    if version_of(inputs) != before:
        raise ConfigError(
            "strategy.recompute=true: the model changes its input in place, and to recompute begins with that input. "
            "Choose strategy.recompute=false, or let the model compute a new tensor."
        )
    return output


def _alone(piece: Tensor) -> Tensor:
    """Returns a piece of a batch that a model or a loss may change in place: to autograd, no other piece changes."""
    return piece.data


@dataclass(frozen=True)
class MicroBatch:
    inputs: Tensor  # of the first stage
    targets: Samples
    share: float  # of its batch


@dataclass
class PipelineStep:
    """A batch under way, or several without a flush. Tensors that are no longer needed are freed at once."""

    held: PipelineWorker
    inputs: InitVar[Sequence[Tensor]]  # of the first stage, by micro-batch
    targets: InitVar[Sequence[Samples]]
    total: Tensor  # the loss so far
    versions: dict[Action, int] = field(default_factory=dict)  # that actions read; of U, the oldest still read after it
    _micro_batches: dict[int, MicroBatch] = field(default_factory=dict)
    _receiving: dict[tuple[str, Key], tuple[Tensor, Work]] = field(default_factory=dict)
    _sending: list[Work] = field(default_factory=list)
    _made: dict[tuple[str, Key], Tensor] = field(default_factory=dict)  # for the next stage, or the one before
    _entered: dict[Key, Tensor] = field(default_factory=dict)
    _ended: dict[Key, Tensor] = field(default_factory=dict)  # where backward begins
    _later: dict[Key, Callable[[], None]] = field(default_factory=dict)  # the weights' gradients

    def __post_init__(self, inputs: Sequence[Tensor], targets: Sequence[Samples]) -> None:
        self.enter(0, inputs, targets)

    def enter(self, first: int, inputs: Sequence[Tensor], targets: Sequence[Samples]) -> None:
        """A batch, whose micro-batches are numbered from `first`."""
        size = sum(map(len, targets))
        for j, (x, y) in enumerate(zip(inputs, targets, strict=True), start=first):
            self._micro_batches[j] = MicroBatch(x, y, len(y) / size)

    def run(self, actions: Sequence[Action]) -> None:
        last, sent = self._last_of_each(actions), len(self._sending)
        for i, action in enumerate(actions):
            match action.kind:
                case "F":
                    self._forward(action)
                case "B":
                    self._backward(action, i in last)
                case "I":
                    self._backward_to_input(action)
                case "W":
                    self._weights(action, i in last)
                case "SEND_F" | "SEND_B":
                    self._send(action)
                case "RECV_F" | "RECV_B":
                    self._receive(action)
                case "U":
                    assert self.held.updates is not None, "a schedule with a flush has no updates"
                    self.held.updates.apply(self.versions[action])
        # without a flush, who is sent something may take it in the next step only
        self.wait_for_sends(None if self.held.updates is None else sent)

    def wait_for_sends(self, count: int | None = None) -> None:
        """Waits for the first `count` sends; None for all."""
        for work in self._sending[:count]:
            work.wait()
        del self._sending[:count]

    def forget(self, done: Sequence[Action]) -> None:
        """Forgets the data of micro-batches that went backward here, and the versions that these actions read."""
        for action in done:
            if action.kind == "B":
                self._micro_batches.pop(action.micro_batch)
                self.versions.pop(action._replace(kind="F"))
            if action.kind in ("B", "U"):
                self.versions.pop(action, None)

    def _last_of_each(self, actions: Sequence[Action]) -> set[int]:
        """The places after which a gradient is whole: before each update, or at the end."""
        found: set[int] = set()
        last = -1
        for i, action in enumerate(actions):
            if action.kind in ("B", "W"):
                last = i
            elif action.kind == "U":
                found.add(last)
        return found if self.held.updates is not None else {last}

    def _computing(self, action: Action) -> AbstractContextManager[None]:
        """Puts the weights that a pass reads in their place within the context, and records its time for a trace."""
        return self._reading(action) if self.held.comm.timeline.passes is None else self._traced(action)

    def _reading(self, action: Action) -> AbstractContextManager[None]:
        if self.held.updates is None:
            return nullcontext()
        return self.held.updates.reading(self.versions[action._replace(kind="F")])

    @contextmanager
    def _traced(self, action: Action) -> Iterator[None]:
        comm = self.held.comm
        begin = comm.mark()
        with self._reading(action):
            yield
        start, end = comm.times(begin, comm.mark())
        assert comm.timeline.passes is not None
        version = None if self.held.updates is None else self.versions[action._replace(kind="F")]
        comm.timeline.passes.append(TimedPass(str(action), start, end, version))

    @property
    def _last_stage(self) -> int:
        return len(self.held.holders) - 1

    # -- messages: of outputs, "F", and of their gradients, "B", by the stage that they are for

    def _send(self, action: Action) -> None:
        stage, way, j = action.stage, action.kind[-1], action.micro_batch
        to = stage + 1 if way == "F" else stage - 1
        tensor = self._made.pop((way, (to, j)))
        if way == "F" and tensor.dtype != (estimated := self.held.like(stage, self._micro_batches[j].inputs).dtype):
            raise ConfigError(
                f"precision: stage {stage} puts out {tensor.dtype}, and the next one awaits {estimated}, as passes on "
                "the meta device have it. Choose precision=fp32, or strategy=data_parallel."
            )
        with self.held.comm.timeline.named("activations" if way == "F" else "gradients"):
            self._sending.append(self.held.comm.isend(tensor.contiguous(), self.held.holders[to]))

    def _receive(self, action: Action) -> None:
        """Begin to."""
        stage, way, j = action.stage, action.kind[-1], action.micro_batch
        source = stage - 1 if way == "F" else stage + 1
        if way == "F":
            empty = self.held.like(source, self._micro_batches[j].inputs)
        else:
            empty = torch.empty_like(self._ended[stage, j], memory_format=torch.contiguous_format)
        work = self.held.comm.irecv(empty, self.held.holders[source])
        self._receiving[way, (stage, j)] = empty, work

    def _take(self, way: str, key: Key) -> Tensor:
        """Returns the tensor made for this stage, here or by another worker."""
        if (way, key) in self._made:
            return self._made.pop((way, key))
        tensor, work = self._receiving.pop((way, key))
        work.wait()
        return tensor

    # -- passes

    def _forward(self, action: Action) -> None:
        stage, j = key = action.stage, action.micro_batch
        batch = self._micro_batches[j]
        entered = _alone(batch.inputs)
        if stage > 0:
            entered = self._take("F", key)
            entered.requires_grad_(entered.is_floating_point())
        with self._computing(action):
            output = self.held.forward(stage, entered)
            if stage == self._last_stage:
                # the mean over the batch is the mean of the micro-batches' means, weighted by their sizes
                output = self.held.loss(output, of_each(batch.targets, _alone)) * batch.share
                self.total += output.detach()
        if stage < self._last_stage:
            self._made["F", (stage + 1, j)] = output.detach()
        self._entered[key], self._ended[key] = entered, output

    def _gradient(self, key: Key) -> Tensor | None:
        """Returns the gradient of a stage's output; None for the loss."""
        return None if key[0] == self._last_stage else self._take("B", key)

    def _backward(self, action: Action, last: bool) -> None:
        key = action.stage, action.micro_batch
        gradient = self._gradient(key)
        output, entered = self._ended.pop(key), self._entered.pop(key)
        self.held.before_backward([output], last)
        with self._computing(action):
            _backward_from(output, gradient)
        self._hand_back(key, entered)

    def _hand_back(self, key: Key, entered: Tensor) -> None:
        stage, j = key
        if stage > 0:
            assert entered.grad is not None
            self._made["B", (stage - 1, j)] = entered.grad

    def _backward_to_input(self, action: Action) -> None:
        """Computes the gradient of the stage's input. Stage 0 computes none, as nobody wants gradients of the data."""
        key = action.stage, action.micro_batch
        gradient = self._gradient(key)
        output, entered = self._ended[key], self._entered.pop(key)
        weights = weights_of(self.held.module, self.held.chunks[action.stage])
        with self._computing(action):
            if action.stage == 0:
                self._later[key] = lambda: _backward_from(output, gradient)
                return
            self._later[key] = backward_to_input(output, gradient, entered, weights)
        self._hand_back(key, entered)

    def _weights(self, action: Action, last: bool) -> None:
        key = action.stage, action.micro_batch
        self.held.before_backward([self._ended.pop(key)], last)
        with self._computing(action):
            self._later.pop(key)()


def _backward_from(output: Tensor, gradient: Tensor | None) -> None:
    """The output of the first stage has no backward pass where user code froze all of that stage in mid-run."""
    if output.requires_grad or gradient is None:
        output.backward(gradient)
