"""How long a worker's compute takes: as modelled on the virtual cluster, or slowed on a real one.

The model of a step: a forward pass of f flops takes (f / flops + overhead / 3) * factor seconds, a backward pass as its
own flops say, and two thirds of the overhead. Flops are counted by torch once for each shape, on the meta device. Time
passes where the work is: a layer's share of the backward pass is over when its gradient is ready, so that a bucket
which is sent meanwhile is worth something on the virtual clock too.
"""

import copy
import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..comm import Comm
from ..tracking.files import read_json
from .memory import unaccounted
from .stragglers import NoStragglers, Stragglers

Shape = tuple[int, ...]
_RECENT = 50  # steps whose compute time says how long a slowed worker's takes


@dataclass(frozen=True)
class PassCost:
    """One batch through one part, at factor 1. `shares`: of the backward pass, by parameter."""

    forward: float
    backward: float
    shares: dict[str, float]


class ComputeModel:
    """What passes cost, for all workers of this process: each shape is looked at once."""

    def __init__(self, flops: float, overhead: float, measured: bool) -> None:
        self._flops, self._overhead, self._measured = flops, overhead, measured
        self._parts: dict[int, nn.Module] = {}
        self._costs: dict[tuple[int, Shape, torch.dtype, bool], PassCost] = {}

    def keep(self, part: int, module: nn.Module) -> None:
        """A copy to look at, before anybody hooks itself into `module`."""
        if part not in self._parts:
            self._parts[part] = copy.deepcopy(module)

    def of(self, part: int, inputs: Tensor) -> PassCost:
        """Of a pass of `inputs` through a part that was kept."""
        key = (part, tuple(inputs.shape), inputs.dtype, inputs.requires_grad)
        if key not in self._costs:
            # It is looked at in the middle of a forward pass, for which others may be keeping account of what is saved.
            with unaccounted():
                self._costs[key] = self._look(self._parts[part], inputs)
        return self._costs[key]

    def _look(self, module: nn.Module, inputs: Tensor) -> PassCost:
        forward, backward, shares = count_flops(module, inputs)
        if self._measured:
            seconds = measured_seconds(module, inputs)
            whole = max(forward + backward, 1.0)
            first = seconds * (forward / whole if forward else 1 / 3)
            return PassCost(first, seconds - first, shares)
        third = self._overhead / 3
        return PassCost(forward / self._flops + third, backward / self._flops + 2 * third, shares)


def count_flops(module: nn.Module, inputs: Tensor) -> tuple[float, float, dict[str, float]]:
    """Flops of the forward and of the backward pass for `inputs`, and each parameter's share of the latter.

    A layer's share goes to the first of its parameters; where none has flops, shares go by entries.
    """
    part = _without_data(module)
    x = inputs.detach().to("meta").requires_grad_(inputs.requires_grad)
    with FlopCounterMode(display=False) as counter:
        outputs = part(x)
    forward = float(counter.get_total_flops())
    owned: dict[str, float] = {}
    root = type(part).__name__
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    trained = [name for name, parameter in part.named_parameters() if parameter.requires_grad]
    for name, layer in part.named_modules():
        first = next((f"{name}.{own}".lstrip(".") for own, _ in layer.named_parameters(recurse=False)), None)
        if first in trained:
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
        owned = {name: part.get_parameter(name).numel() for name in trained}
    total = sum(owned.values()) or 1.0
    return forward, backward, {name: share / total for name, share in owned.items() if share}


def _without_data(module: nn.Module) -> nn.Module:
    """A copy on the meta device; tensors that are plain attributes of a layer go there too."""
    part = copy.deepcopy(module).to("meta")
    for layer in part.modules():
        for name, value in vars(layer).items():
            if isinstance(value, Tensor):
                vars(layer)[name] = value.to("meta")
    return part


def measured_seconds(module: nn.Module, inputs: Tensor) -> float:
    """A forward and a backward pass on this machine, the median of several; kept in the user's cache, so that a run
    repeats on the same machine."""
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    told = f"{module!r} {shapes} {tuple(inputs.shape)} {inputs.dtype} {inputs.requires_grad} {torch.__version__}"
    key = sha256(f"{told} {platform.node()} {platform.machine()}".encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "compute.json"
    known = _read(cache)
    if key not in known:
        known[key] = _time(module, inputs)
        with suppress(OSError):  # a cache that cannot be kept is measured again
            cache.parent.mkdir(parents=True, exist_ok=True)
            temporary = cache.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(known))
            temporary.replace(cache)
    return known[key]


def _read(cache: Path) -> dict[str, float]:
    """What is not as we write it is measured again."""
    try:
        found = read_json(cache)
    except (OSError, ValueError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {key: seconds for key, seconds in entries if isinstance(seconds, float) and 0 < seconds < float("inf")}


def _time(module: nn.Module, inputs: Tensor) -> float:
    part = copy.deepcopy(module)
    x = inputs.detach().clone().requires_grad_(inputs.requires_grad)
    seconds: list[float] = []
    with torch.random.fork_rng(devices=[]):  # dropout here must not change what is drawn in training
        for _ in range(12):
            start = time.perf_counter()
            outputs = part(x)
            if outputs.requires_grad:
                outputs.float().sum().backward()
            seconds.append(time.perf_counter() - start)
            part.zero_grad()
            x.grad = None
    return statistics.median(seconds[2:])


class ModelledCompute:
    """Lets modelled time pass on one worker of the virtual cluster, inside its passes."""

    def __init__(self, comm: Comm, model: ComputeModel, part: int, stragglers: Stragglers) -> None:
        self._comm, self._model, self._part, self._stragglers = comm, model, part, stragglers
        self._factor = 1.0
        self._passes: deque[PassCost] = deque()  # forward passes whose backward pass is still to come
        self._current: PassCost | None = None

    def attach(self, module: nn.Module) -> None:
        """Before a sync mode adds its own hooks: a gradient is ready when its time has passed."""
        self._model.keep(self._part, module)
        # before, not after: computing a pass again for backward ends as soon as the last tensor it needs is there
        module.register_forward_pre_hook(self._before_forward)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._after_gradient(name))

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        self._factor = self._stragglers.factor(self._comm.rank, step)
        yield
        self._passes.clear()
        self._current = None

    def backward_begins(self) -> None:
        self._current = self._passes.popleft() if self._passes else None

    def _before_forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not module.training:
            return
        cost = self._model.of(self._part, inputs[0])
        self._passes.append(cost)  # within backward it is computed again, and never asked for
        self._comm.elapse(cost.forward * self._factor)

    def _after_gradient(self, name: str) -> Callable[[Tensor], None]:
        def elapse(_: Tensor) -> None:
            if self._current is None:
                self.backward_begins()  # nobody said so: a strategy with a single pass
            if self._current is not None and name in self._current.shares:
                self._comm.elapse(self._current.backward * self._current.shares[name] * self._factor)

        return elapse


class RealCompute:
    """Slows a real worker: before it computes it waits for (factor - 1) times what it has been taking."""

    def __init__(self, comm: Comm, stragglers: Stragglers) -> None:
        self._comm, self._stragglers = comm, stragglers
        self._idle = isinstance(stragglers, NoStragglers)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def attach(self, module: nn.Module) -> None:
        self._device = next(module.parameters()).device

    def backward_begins(self) -> None:
        pass

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        if self._idle:
            yield
            return
        slower = self._stragglers.factor(self._comm.rank, step) - 1
        if slower > 0 and self._recent:
            self._comm.elapse(slower * statistics.median(self._recent))
        start = self._now()
        yield
        end, blocked = self._now(), 0.0
        for op in reversed(self._comm.timeline.operations):
            if op.end < start:
                break
            blocked += op.end - max(op.start, start)
        self._recent.append(max(end - start - blocked, 0.0))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._comm.now()
