"""The time that a worker's compute takes: as modelled on the virtual cluster, or slowed on a real one.

The model of a step: a forward pass of f flops takes (f / flops + overhead / 3) * factor seconds, a backward pass as its
own flops say, and two thirds of the overhead. Flops are counted by torch once for each shape, on the meta device. Time
passes where the work is: a layer's share of the backward pass is over when its gradient is ready, so that a bucket
which is sent meanwhile is worth something on the virtual clock too.
"""

import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...batches import Fields, Samples, call, of_each, tensors_of
from ...comm import Comm
from ...comm.private import private, user_cache
from ...compat.flops import ForwardFlops
from ...strategies.core.copies import copy_of, without_data
from ...strategies.core.passes import Passes
from ...strategies.precision import Float32, Precision
from ...tracking.files import read_json
from ..base.caches import without_meta
from ..base.memory import unaccounted
from .replayed import Recordings, ReplayedPasses
from .stragglers import NoStragglers, Stragglers

T = TypeVar("T")
_RECENT = 50  # steps whose compute time says how long a slowed worker's takes


@dataclass(frozen=True)
class PassCost:
    """One batch through one part, at factor 1. `shares`: of the backward pass, by parameter."""

    forward: float
    backward: float
    shares: dict[str, float]
    to_input: float = 0.0  # of `backward`, what the gradient of the input takes by itself, where that is wanted


class ComputeModel:
    """The cost of passes, for all workers of this process. Each shape is profiled once."""

    def __init__(self, flops: float, overhead: float, measured: bool) -> None:
        self._flops, self._overhead, self.is_measured = flops, overhead, measured
        self.precision: Precision = Float32()  # that parts were told to compute in; the engine sets it
        self.allowed: tuple[str, ...] = ()  # packages of the user's; the engine sets it
        self._parts: dict[int, nn.Module] = {}
        self._costs: dict[tuple[Any, ...], PassCost] = {}  # by part, what inputs look like, and chunk
        self.recordings: Recordings = {}

    def keep(self, part: int, module: nn.Module) -> None:
        """A copy to look at, before anybody hooks itself into `module`."""
        if part not in self._parts:
            self._parts[part] = copy_of(module)

    def of(self, part: int, inputs: Samples, *chunk: int) -> PassCost:
        """Returns the cost of a pass of `inputs` through a part that was kept, or through a chunk of it."""
        key = (part, *((tuple(x.shape), x.dtype, x.requires_grad) for x in tensors_of(inputs)), chunk)
        if key not in self._costs:
            # It is looked at in the middle of a forward pass, for which others may be keeping account of what is saved.
            with unaccounted(), torch.autocast("cpu", enabled=False), without_meta(self.allowed):
                self._costs[key] = self._look(self._parts[part], inputs, *chunk)
        return self._costs[key]

    def least(self, model: nn.Module, inputs: Samples, parts: int) -> float:
        """Returns a lower bound of the seconds of a step's passes of `model` in so many parts: the mean of their flops
        alone, or the overhead alone.
        """
        with self.precision.estimated(torch.device("cpu")), without_meta(self.allowed):
            forward, backward, _ = count_flops(model, inputs)
        return max((forward + backward) / self._flops / parts, self._overhead)

    def _look(self, module: nn.Module, inputs: Samples, *chunk: int) -> PassCost:
        with self.precision.estimated(torch.device("cpu")):
            forward, backward, shares = count_flops(module, inputs, *chunk)
            to_input = count_flops_to_input(module, inputs, *chunk)
        if self.is_measured:
            seconds = measured_seconds(module, inputs, *chunk, precision=self.precision)
            whole = max(forward + backward, 1.0)
            first = seconds * (forward / whole if forward else 1 / 3)
            back = seconds - first
            half = to_input / backward if backward else 1 / 2
            return PassCost(first, back, shares, back * half if _wanted(inputs) else 0.0)
        third = self._overhead / 3
        return PassCost(
            forward / self._flops + third,
            backward / self._flops + 2 * third,
            shares,
            to_input / self._flops + third if _wanted(inputs) else 0.0,
        )


def _wanted(inputs: Samples) -> bool:
    """Returns whether a pass needs the gradient of its input. Several inputs are the data's, and need none."""
    return isinstance(inputs, Tensor) and inputs.requires_grad


def _pass(module: nn.Module, inputs: Samples, *chunk: int) -> Tensor:
    """Returns the outputs for a copy of the inputs, which the module may change."""
    inputs = of_each(inputs, Tensor.clone)
    return module(inputs, *chunk) if isinstance(inputs, Tensor) else call(module, inputs)


def _counted(count: Callable[[nn.Module, Samples], T], module: nn.Module, inputs: Samples) -> T:
    """Returns what `count` makes of a copy of the module, and of inputs: on the meta device; or of these very inputs
    where the model looks at values, or has tensors that no copy knows of.
    """

    def like(x: Samples) -> Samples:
        for each, its in zip(tensors_of(x), tensors_of(inputs), strict=True):
            each.requires_grad_(its.requires_grad)
        return x

    try:
        return count(without_data(module), like(of_each(inputs, lambda each: each.detach().to("meta"))))
    except Exception:
        with torch.random.fork_rng(devices=[]):  # what is drawn here must not change what is drawn in training
            return count(copy_of(module), like(of_each(inputs, lambda each: each.detach().clone())))


def count_flops_to_input(module: nn.Module, inputs: Samples, *chunk: int) -> float:
    """Flops of the gradient of `inputs` alone; 0 where it is not wanted."""
    if not isinstance(inputs, Tensor) or not inputs.requires_grad:
        return 0.0

    def count(part: nn.Module, x: Samples) -> float:
        outputs = _pass(part, x, *chunk)
        with FlopCounterMode(display=False) as counter:
            outputs.sum().backward(inputs=[*tensors_of(x)])
        return float(counter.get_total_flops())

    return _counted(count, module, inputs)


def count_flops(module: nn.Module, inputs: Samples, *chunk: int) -> tuple[float, float, dict[str, float]]:
    """Flops of the forward and of the backward pass for `inputs`, and each parameter's share of the latter.

    A layer's share goes to the first of its parameters that are trained; where none has flops, shares go by entries.
    """
    return _counted(lambda part, x: _flops(part, x, chunk), module, inputs)


def _flops(part: nn.Module, x: Samples, chunk: tuple[int, ...]) -> tuple[float, float, dict[str, float]]:
    with ForwardFlops() as counter:
        outputs = _pass(part, x, *chunk)
    forward = float(counter.get_total_flops())
    owned: dict[str, float] = {}
    root = type(part).__name__
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    trained = [name for name, parameter in part.named_parameters() if parameter.requires_grad]
    for name, layer in part.named_modules():
        names = (f"{name}.{own}".lstrip(".") for own, _ in layer.named_parameters(recurse=False))
        first = next((each for each in names if each in trained), None)
        if first is not None:
            below = sum(
                counts.get(f"{root}.{name}.{child}".replace("..", "."), 0) for child, _ in layer.named_children()
            )
            owned[first] = max(counts.get(f"{root}.{name}".rstrip("."), 0) - below, 0)
    backward = 0.0
    if outputs.requires_grad:
        with FlopCounterMode(display=False) as counter:
            outputs.sum().backward()
        backward = float(counter.get_total_flops())
    if not sum(owned.values()):
        reached = [name for name in trained if part.get_parameter(name).grad is not None]
        owned = {name: part.get_parameter(name).numel() for name in reached or trained}
    total = sum(owned.values()) or 1.0
    return forward, backward, {name: share / total for name, share in owned.items() if share}


def measured_seconds(
    module: nn.Module,
    inputs: Samples,
    *chunk: int,
    precision: Precision = Float32(),
) -> float:
    """A forward and a backward pass on this machine, the median of several; kept in the user's cache, so that a run
    repeats on the same machine."""
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    looks = " ".join(f"{tuple(x.shape)} {x.dtype} {x.requires_grad}" for x in tensors_of(inputs))
    told = f"{module!r} {shapes} {looks} {torch.__version__}"
    told += f" {chunk}" if any(chunk) else ""
    told += f" {precision.dtype}" if precision.dtype else ""
    key = sha256(f"{told} {platform.node()} {platform.machine()}".encode()).hexdigest()[:24]
    try:
        cache = private(user_cache("compute")) / "seconds.json"
    except (OSError, RuntimeError):  # what cannot be kept, or could be another user's, is measured again
        return _time(module, inputs, *chunk)
    known = _read(cache)
    if key not in known:
        known[key] = _time(module, inputs, *chunk)
        with suppress(OSError):
            temporary = cache.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(known))
            temporary.replace(cache)
    return known[key]


def _read(cache: Path) -> dict[str, float]:
    """Reads the cache. Entries that are not in our format are measured again."""
    try:
        found = read_json(cache)
    except (OSError, ValueError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {key: seconds for key, seconds in entries if isinstance(seconds, float) and 0 < seconds < float("inf")}


def _time(module: nn.Module, inputs: Samples, *chunk: int) -> float:
    part = copy_of(module)
    x = of_each(inputs, lambda each: each.detach().clone().requires_grad_(each.requires_grad))
    seconds: list[float] = []
    with torch.random.fork_rng(devices=[]):  # dropout here must not change what is drawn in training
        for _ in range(12):
            start = time.perf_counter()
            outputs = _pass(part, x, *chunk)
            if outputs.requires_grad:
                outputs.float().sum().backward()
            seconds.append(time.perf_counter() - start)
            part.zero_grad()
            for each in tensors_of(x):
                each.grad = None
    return statistics.median(seconds[2:])


@dataclass(eq=False)
class _Pass:
    """A forward pass whose backward pass is still to come."""

    cost: PassCost
    is_apart: bool = False  # the gradient of its input has been computed by itself


_FROZEN = -1  # the place of a model that is no part of the one that is trained
_PASS = "paceline pass"  # the key under which the end of a pass knows it, in autograd's graph


class ModelledCompute:
    """Lets modelled time pass on one worker of the virtual cluster, inside its passes.

    A backward pass may come in two: the gradient of its input, of which nobody tells, and those of the weights.
    """

    def __init__(self, comm: Comm, model: ComputeModel, part: int, stragglers: Stragglers) -> None:
        self._comm, self._model, self._part, self._stragglers = comm, model, part, stragglers
        self._factor = 1.0
        self._fails_at = inf
        self._passes: deque[_Pass] = deque()
        self._entered: _Pass | None = None  # the last forward pass
        self._current: _Pass | None = None  # whose backward pass, or whose gradients of weights, it is in
        self.hooks: tuple[int, ...] = ()  # its own in the module

    def passes(self) -> Passes:
        """Returns the passes of a worker that waits for nobody within one."""
        return ReplayedPasses(self, self._model.recordings)

    def attach(self, module: nn.Module) -> None:
        """Attaches hooks before a sync mode adds its own: a gradient is ready when its time has passed."""
        self._model.keep(self._part, module)
        # before, not after: computing a pass again for backward ends as soon as the last tensor it needs is there
        before = module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self.hooks = before.id, module.register_forward_hook(self._after_forward).id
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._after_gradient(name))

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        self._factor = self._stragglers.factor(self._comm.rank, step)
        yield
        self._passes.clear()
        self._current = self._entered = None

    def fails_at(self, moment: float) -> None:
        """The worker fails at `moment` of the fabric's clock: what it computes from then on takes no time."""
        self._fails_at = moment

    def _elapse(self, seconds: float) -> None:
        """Lets `seconds` pass on a worker at factor 1, or as many of them as are left until it fails."""
        self._comm.elapse(min(seconds * self._factor, self._fails_at - self._comm.now()))

    def to_inputs(self, inputs: Tensor, passes: int) -> None:
        """Lets the time of so many passes of these inputs pass, forward and back to them, of a model in evaluation
        mode.
        """
        cost = self._model.of(self._part, inputs.detach().requires_grad_())
        self._elapse(passes * (cost.forward + cost.to_input))

    def frozen(self, model: nn.Module, inputs: Samples) -> None:
        """A forward pass of another model comes next, which is not trained."""
        self._model.keep(_FROZEN, model)
        self._elapse(self._model.of(_FROZEN, inputs).forward)

    def backward_begins(self, roots: Sequence[Tensor] = ()) -> None:
        """Begins the backward pass of the forward pass that ended in `roots`; without them, of the first that
        is kept.
        """
        found = _pass_of(roots)
        if found in self._passes:
            self._passes.remove(found)
        self._current = found or (self._passes.popleft() if self._passes else None)

    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not module.training:
            return
        chunk = [each for each in inputs[1:] if isinstance(each, int)]  # all else is the strategy's own affair
        tensors = [each for each in inputs if isinstance(each, Tensor)]
        # by the rule of `call`
        entered = Fields({**dict(enumerate(tensors)), **named}) if named or len(tensors) > 1 else inputs[0]
        self._enter(entered, *chunk)

    def forward(self, inputs: Samples, root: Tensor) -> None:
        """A forward pass of `inputs` was computed elsewhere, of which a backward pass will begin at `root`."""
        assert root.grad_fn is not None
        _notes(root.grad_fn)[_PASS] = self._enter(inputs)

    def _enter(self, inputs: Samples, *chunk: int) -> _Pass:
        self._entered = _Pass(self._model.of(self._part, inputs, *chunk))
        self._passes.append(self._entered)  # within backward it is computed again, and never asked for
        self._elapse(self._entered.cost.forward)
        return self._entered

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], outputs: object) -> None:
        end = outputs.grad_fn if isinstance(outputs, Tensor) else None
        if module.training and end is not None and self._entered is not None:
            _notes(end)[_PASS] = self._entered
            end.register_prehook(partial(self._before_backward, self._entered))

    def _before_backward(self, of: _Pass, gradients: object) -> None:
        """Counts a gradient that was not announced as that of the input alone."""
        if of is not self._current and of.cost.to_input and not of.is_apart:
            of.is_apart = True
            self._elapse(of.cost.to_input)

    def _after_gradient(self, name: str) -> Callable[[Tensor], None]:
        def elapse(_: Tensor) -> None:
            if self._current is None:
                self.backward_begins()  # nobody said so: a strategy with a single pass
            if self._current is not None and name in self._current.cost.shares:
                cost = self._current.cost
                done = cost.to_input if self._current.is_apart else 0.0
                self._elapse((cost.backward - done) * cost.shares[name])

        return elapse


def _notes(node: Any) -> dict[str, Any]:
    return node.metadata  # a property, which torch declares as a method


def _pass_of(roots: Sequence[Tensor]) -> _Pass | None:
    """The pass that ends nearest to `roots`."""
    nodes = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen = set(nodes)
    while nodes:
        node = nodes.popleft()
        if (found := _notes(node).get(_PASS)) is not None:
            return found
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        nodes.extend(following)
    return None


class RealCompute:
    """Slows a real worker: before it computes it waits for (factor - 1) times what it has been taking."""

    def __init__(self, comm: Comm, stragglers: Stragglers) -> None:
        self._comm, self._stragglers = comm, stragglers
        self._idle = isinstance(stragglers, NoStragglers)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def passes(self) -> Passes:
        return Passes()

    def attach(self, module: nn.Module) -> None:
        """Counts nothing of the module: its passes take their own time."""

    def to_inputs(self, inputs: Tensor, passes: int) -> None:
        """Does nothing: the passes take their own time."""

    def frozen(self, model: nn.Module, inputs: Samples) -> None:
        """Does nothing: the pass takes its own time."""

    def backward_begins(self, roots: Sequence[Tensor] = ()) -> None:
        pass

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        if self._idle:
            yield
            return
        slower = self._stragglers.factor(self._comm.rank, step) - 1
        if slower > 0 and self._recent:
            self._comm.elapse(slower * statistics.median(self._recent))
        begin = self._comm.mark()
        yield
        (start, end), blocked = self._comm.times(begin, self._comm.mark()), 0.0
        for op in reversed(self._comm.timeline.operations):
            if op.end < start:
                break
            blocked += op.end - max(op.start, start)
        self._recent.append(max(end - start - blocked, 0.0))
