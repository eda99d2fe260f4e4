"""Training written a second time: models, data, serial loops in plain torch, and a driver for the real objects."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.comm import Comm
from paceline.exchange.clip import Counted
from paceline.exchange.privacy.clipping import ROUNDING as SLACK
from paceline.strategies import Batch, Strategy, Sync
from paceline.strategies.core import staged, with_servers
from paceline.strategies.core.accumulation import Accumulation
from paceline.strategies.core.placements import owned
from paceline.strategies.core.state import from_bytes

FEATURES, CLASSES = 6, 4
IMAGE = (1, 8, 8)  # as digits are
Weights = dict[str, Tensor]


# -- models: constructors without arguments, so that a worker can be told one


def mlp() -> nn.Sequential:
    """Five layers that can be cut anywhere but between a layer and nothing: 3 of them have parameters."""
    return nn.Sequential(
        nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES)
    )


def mlp64() -> nn.Sequential:
    return mlp().double()


def deep64() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(FEATURES, FEATURES) for _ in range(4)], nn.Linear(FEATURES, CLASSES)).double()


def images64() -> nn.Sequential:
    """For images; each sample is normalised by itself, so that replicas together are one worker."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 4, 3, padding=1),
            norm=nn.GroupNorm(2, 4),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            again=nn.Conv2d(4, 4, 3, padding=1),
            flatten=nn.Flatten(),
            output=nn.Linear(4 * 4 * 4, CLASSES),
        )
    ).double()


class TwoDtypes(nn.Module):
    """A float32 and a float64 half."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(FEATURES, 7)
        self.wide = nn.Linear(7, CLASSES).double()
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x.float()).double()) * self.scale


class Branching(nn.Module):
    """A branch that only samples whose first feature is positive go through; `never` is used by none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, 8)
        self.branch = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        taken = x[:, 0] > 0
        if bool(taken.any()):
            h = torch.where(taken[:, None], h + self.branch(h.tanh()), h)
        return self.head(h.tanh())


def branching64() -> nn.Module:
    return Branching().double()


# -- optimizers


def momentum(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01)


# -- data


def samples(
    step: int, count: int, first_feature: Sequence[float] | None = None, shape: Sequence[int] = (FEATURES,)
) -> tuple[Tensor, Tensor]:
    """The `count` samples of `step`, float64; `first_feature` sets each sample's first one."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    if first_feature is not None:
        inputs[:, 0] = torch.tensor(first_feature)
    return inputs, torch.randint(0, CLASSES, (count,), generator=generator)


@dataclass(frozen=True)
class Case:
    """Something to train. `sizes`: [step][replica] samples. `branches`: [step][replica], whether its samples branch.
    `loss`: (outputs, targets) -> mean over the samples. `expected`: samples of a step over all replicas on average,
    where they are drawn by chance.
    """

    sizes: list[list[int]]
    model: Callable[[], nn.Module] = mlp64
    optimizer: Callable[..., torch.optim.Optimizer] = momentum
    branches: list[list[bool]] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    shape: tuple[int, ...] = (FEATURES,)  # of a sample
    expected: int | None = None

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """All replicas' samples of `step`, in the order of replicas, in the model's dtype."""
        sizes, feature = self.sizes[step], None
        if self.branches is not None:
            feature = [1.0 if on else -1.0 for on, n in zip(self.branches[step], sizes, strict=True) for _ in range(n)]
        inputs, targets = samples(step, sum(sizes), feature, self.shape)
        return inputs.to(next(self.start().parameters()).dtype), targets

    def start(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.model()


def weights_of(model: nn.Module) -> Weights:
    """Whole, also where each worker holds some rows: then all of them call."""
    kept = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: w.full_tensor() if isinstance(w, DTensor) else w.clone() for name, w in kept.items()}


# -- oracles


def serial(case: Case, pieces: Callable[[int], int] = lambda n: 1, zeros_for_none: bool = False) -> Weights:
    """One worker on the batches that all replicas of `case` hold together, by gradient accumulation.

    `pieces`: into how many near-equal micro-batches a batch of n samples is cut. `zeros_for_none`: parameters that
    the loss does not depend on have a zero gradient, not none.
    """
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        optimizer.zero_grad()
        cuts = pieces(len(targets))
        for x, y in zip(torch.tensor_split(inputs, cuts), torch.tensor_split(targets, cuts), strict=True):
            (case.loss(model(x), y) * (len(y) / len(targets))).backward()
        if zeros_for_none:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        optimizer.step()
    return weights_of(model)


def clipped_sums(case: Case, model: nn.Module, inputs: Tensor, targets: Tensor, clip: float) -> list[Tensor]:
    """By parameter, the sum of the samples' gradients, each taken by itself and clipped to this length."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for i in range(len(targets)):
        gradient = torch.autograd.grad(
            case.loss(model(inputs[i : i + 1]), targets[i : i + 1]), list(model.parameters())
        )
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradient))
        for total, each in zip(sums, gradient, strict=True):
            total += each * min(1.0, clip / (1 + SLACK) / norm)
    return sums


def serial_with_buffers(case: Case, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """As `serial`, with the running statistics, which belong to a model's state."""
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()
    state = model.state_dict()
    assert state.keys() == like.keys()
    return {name: tensor.double() for name, tensor in state.items()}


# -- the real thing


@dataclass(frozen=True)
class Plan:
    """What to train with what; workers come by replica and part, then servers."""

    strategy: Strategy
    sync: Sync
    case: Case
    seeds: list[int] = field(default_factory=lambda: [0])  # of each replica's start; the last one repeats; servers 0
    # Of each part, or of each worker, to go on from; bytes, as tensors would be shared by the workers
    state: list[bytes] | None = None
    start: int = 0  # the first step
    accumulate: int = 1


def workers_of(plan: Plan) -> int:
    replicas = len(plan.case.sizes[0])
    return plan.strategy.parts * (replicas + plan.sync.servers)


def train(comm: Comm, plan: Plan) -> dict[str, Any]:
    """One worker's or server's whole life; returns its weights and what else there is to compare."""
    strategy, case = plan.strategy, plan.case
    sync = strategy.own_sync() or plan.sync
    replicas = len(case.sizes[0])
    slot, part = divmod(comm.rank, strategy.parts)
    serves = slot >= replicas
    accumulation = Accumulation(plan.accumulate)
    with comm.ledger.aside():
        of_replica = comm.split(None if serves else slot)
        of_part = comm.split(part)
        assert of_part is not None
        across = comm.split(None if serves else part, "replica") if strategy.traits.across_replicas else None
        model = case.start(0 if serves else plan.seeds[min(slot, len(plan.seeds) - 1)])
        if of_replica is None:
            module = strategy.split(model)[part]
        else:
            strategy.configure(replace(strategy.setting, across=across))
            loss, before_backward = accumulation.weighing(case.loss), accumulation.telling(sync.before_backward)
            strategy.prepare(model, loss, of_replica, before_backward)
            module = strategy.module
        state = None
        if plan.state is not None:
            of_each = len(plan.state) > strategy.parts and not serves
            state = from_bytes(plan.state[comm.rank if of_each else part])
        if state is not None:
            module.load_state_dict(state["weights"])
        optimizer = case.optimizer(module.parameters())
        if of_replica is not None and strategy.parts > 1:
            looks = strategy.split(case.start().to("meta"))
            counted = Counted(of_replica, frozenset(owned(looks, strategy.mesh)[part]))
            sync.configure(replace(sync.setting, counted=counted))
        sync.prepare(dict(module.named_parameters()), optimizer, of_part)
        if state is not None:
            if sync.traits.synchronous and not (sync.traits.weights_agree and sync.traits.state_agrees):
                module.load_state_dict(state["weights"])
            sync.load_state_dict(state["sync"])
    if serves:
        assert isinstance(sync, with_servers.SyncWithServers)
        sync.serve()
        return {"weights": weights_of(module), "report": sync.report(), "ledger": comm.ledger.snapshot()}
    losses, trajectory, launches = [], [], _Launches(of_part)
    done = plan.start
    while (step := with_servers.next_step(sync, done)) < len(case.sizes):
        done = step + 1
        batch = replica_batch(case, step, slot)
        sync.begin(batch)
        launches.begin()
        loss = accumulation.forward_backward(strategy, batch)
        launches.backward_is_done()
        sync.update()
        losses.append(None if loss is None else float(loss))
        trajectory.append(weights_of(module))
    staged.drain(strategy)
    with comm.ledger.aside():
        kept = sync.state_dict() if sync.traits.synchronous or slot == 0 else None
        before_finish = weights_of(module)
        sync.finish()
        whole = strategy.full_state(sync.consensus())
    return {
        "weights": weights_of(module),
        "whole": whole,
        "state": kept,
        "before finish": before_finish,
        "losses": losses,
        "trajectory": trajectory,  # the weights after each step
        "report": sync.report(),
        "ledger": comm.ledger.snapshot(),
        "across": comm.ledger.along("replica").snapshot(),  # what of it the strategy sent to other replicas
        "launched": launches.launched,
        "launched in backward": launches.in_backward,
    }


def replica_batch(case: Case, step: int, replica: int) -> Batch:
    inputs, targets = case.step(step)
    sizes, expected = case.sizes[step], case.expected
    own = inputs.split(sizes)[replica], targets.split(sizes)[replica]
    if expected is None:
        return Batch(*own, sum(sizes))
    return Batch(*own, expected, step, expected=expected / len(sizes))


class _Launches:
    """What all-reduces a worker launches, by step, and how many of them before backward has ended."""

    def __init__(self, comm: Comm | None) -> None:
        self.launched: list[list[str]] = []
        self.in_backward: list[int] = []
        if comm is None:
            return
        original = comm.all_reduce

        def all_reduce(tensor: Tensor, op: Any = "sum") -> Any:
            if self.launched:
                self.launched[-1].append(f"{tensor.dtype} {tensor.numel()}")
            return original(tensor, op)

        comm.all_reduce = all_reduce

    def begin(self) -> None:
        self.launched.append([])

    def backward_is_done(self) -> None:
        self.in_backward.append(len(self.launched[-1]))


# -- comparisons


def identical(a: Weights, b: Weights) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def distance(a: Weights, b: Weights) -> float:
    """The largest difference, relative to the largest weight of the same tensor (or to 1, where that is less)."""
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max() / b[n].abs().max().clamp(min=1.0)) for n in a)


# Sums of float64 gradients in another order: a few ulps (2e-16) a step, carried through a few steps of a tame problem.
ROUNDING = 1e-12
