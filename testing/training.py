"""Small trainings: models, data, a serial loop in plain torch, and a driver for the real strategies and sync modes."""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..comm import Comm
from ..exchange.clip import Counted
from ..strategies import Batch, Strategy, Sync
from ..strategies.core import staged, with_servers
from ..strategies.core.accumulation import Accumulation
from ..strategies.core.placements import owned
from ..strategies.core.state import from_bytes, read_all, to_bytes

# MKL's products depend, on some CPUs, on the memory address of a matrix; checks bit for bit need one result for all.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

FEATURES, CLASSES = 6, 4
IMAGE = (1, 8, 8)  # as digits are
Weights = dict[str, Tensor]


# -- models: constructors without arguments, so that a worker can be told one


def mlp() -> nn.Sequential:
    """Five layers, three of them with parameters. A pipeline may cut between any two."""
    return nn.Sequential(
        nn.Linear(FEATURES, 10), nn.ReLU(), nn.Linear(10, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES)
    )


def mlp64() -> nn.Sequential:
    return mlp().double()


def images64() -> nn.Sequential:
    """A small network for images. It normalises each sample by itself, so that replicas together equal one worker."""
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


# -- optimizers


def momentum(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


# -- data


def samples(
    step: int, count: int, first_feature: Sequence[float] | None = None, shape: Sequence[int] = (FEATURES,)
) -> tuple[Tensor, Tensor]:
    """Returns the `count` samples of `step`, float64. `first_feature` sets the first feature of each."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    if first_feature is not None:
        inputs[:, 0] = torch.tensor(first_feature)
    return inputs, torch.randint(0, CLASSES, (count,), generator=generator)


@dataclass(frozen=True)
class TrainingCase:
    """A small training.

    Args:
        sizes: [step][replica] samples.
        model: builds the model; without arguments.
        optimizer: builds the optimizer of some parameters.
        branches: [step][replica], whether the first feature of its samples is 1, and not -1.
        loss: (outputs, targets) -> mean over the samples.
        shape: of a sample.
        expected: mean samples of a step over all replicas, where they are drawn by chance.
    """

    sizes: list[list[int]]
    model: Callable[[], nn.Module] = mlp64
    optimizer: Callable[..., torch.optim.Optimizer] = momentum
    branches: list[list[bool]] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    shape: tuple[int, ...] = (FEATURES,)
    expected: int | None = None

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns the samples of `step`, in the order of replicas, in the dtype of the model."""
        sizes, feature = self.sizes[step], None
        if self.branches is not None:
            feature = [1.0 if on else -1.0 for on, n in zip(self.branches[step], sizes, strict=True) for _ in range(n)]
        inputs, targets = samples(step, sum(sizes), feature, self.shape)
        return inputs.to(next(self.start().parameters()).dtype), targets

    def start(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.model()


def weights_of(model: nn.Module) -> Weights:
    """Returns copies of whole parameters. Where each worker holds some rows (DTensor), all of them call."""
    kept = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: getattr(w, "full_tensor", w.clone)() for name, w in kept.items()}


# -- oracles


def serial(case: TrainingCase, pieces: Callable[[int], int] = lambda n: 1, zeros_for_none: bool = False) -> Weights:
    """Trains one worker on the joint batches of all replicas, by gradient accumulation.

    Args:
        pieces: the number of near-equal micro-batches of a batch of n samples.
        zeros_for_none: parameters that the loss does not depend on have a zero gradient, and not none.
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


# -- the real thing


@dataclass(frozen=True)
class TrainingPlan:
    """A case with a strategy and a sync mode. Workers come by replica and part, then servers.

    Args:
        seeds: of the start of each replica; the last one repeats. Servers start with 0.
        state: of each part, or of each worker, to continue from; bytes, as workers would share tensors.
        start: the first step.
        seconds: of a step of each replica, on the clock of the virtual cluster.
        looks: every worker asks for the consensus before it finishes.
    """

    strategy: Strategy
    sync: Sync
    case: TrainingCase
    seeds: list[int] = field(default_factory=lambda: [0])
    state: list[bytes] | None = None
    start: int = 0
    accumulate: int = 1
    seconds: list[float] | None = None
    looks: bool = False


def workers_of(plan: TrainingPlan) -> int:
    replicas = len(plan.case.sizes[0])
    return plan.strategy.parts * (replicas + plan.sync.servers)


def _steps(
    comm: Comm,
    plan: TrainingPlan,
    sync: Sync,
    accumulation: Accumulation,
    module: nn.Module,
    slot: int,
    launches: "_Launches",
) -> tuple[list[float | None], list[Weights]]:
    """Trains on the steps of one replica. Returns the loss and the weights after each."""
    losses: list[float | None] = []
    trajectory: list[Weights] = []
    done = plan.start
    while (step := with_servers.next_step(sync, done)) < len(plan.case.sizes):
        done = step + 1
        batch = replica_batch(plan.case, step, slot)
        sync.begin(batch)
        launches.begin()
        loss = accumulation.forward_backward(plan.strategy, batch)
        if plan.seconds is not None:
            comm.elapse(plan.seconds[slot])
        launches.backward_is_done()
        sync.update()
        losses.append(None if loss is None else float(loss))
        trajectory.append(weights_of(module))
    staged.drain(plan.strategy)
    return losses, trajectory


def train(comm: Comm, plan: TrainingPlan) -> dict[str, Any]:
    """Runs one worker or server from start to end. Returns its weights, and more to compare."""
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
        return {
            "weights": weights_of(module),
            "report": sync.report(),
            "ledger": comm.ledger.snapshot(),
            "sent": _sent(comm),
        }
    launches = _Launches(of_part)
    losses, trajectory = _steps(comm, plan, sync, accumulation, module, slot, launches)
    clock = comm.now()
    with comm.ledger.aside():
        kept = None
        if sync.traits.synchronous or slot == 0:
            kept = from_bytes(to_bytes(read_all(sync.state_dict())))  # a copy: `finish` may change tensors of the state
        before_finish = weights_of(module)
        consensus = {name: each.clone() for name, each in sync.consensus().items()} if plan.looks else {}
        sync.finish()
        agreed = sync.consensus()
        whole = strategy.full_state(agreed) if agreed else None  # {} where replica 0 alone has what all share
    return {
        "weights": weights_of(module),
        "consensus": consensus,  # before finish
        "whole": whole,
        "state": kept,
        "before finish": before_finish,
        "losses": losses,
        "trajectory": trajectory,  # the weights after each step
        "report": sync.report(),
        "ledger": comm.ledger.snapshot(),
        "sent": _sent(comm),  # exact, where the ledger rounds each primitive
        "clock": clock,  # seconds, when training was over
        "across": comm.ledger.along("replica").snapshot(),  # what of it the strategy sent to other replicas
        "launched": launches.launched,
        "launched in backward": launches.in_backward,
    }


def _sent(comm: Comm) -> float:
    return float(sum(comm.ledger.bytes.values()))


def replica_batch(case: TrainingCase, step: int, replica: int) -> Batch:
    inputs, targets = case.step(step)
    sizes, expected = case.sizes[step], case.expected
    own = inputs.split(sizes)[replica], targets.split(sizes)[replica]
    if expected is None:
        return Batch(*own, sum(sizes))
    return Batch(*own, expected, step, expected=expected / len(sizes))


class _Launches:
    """The all-reduces that a worker launches, by step, and how many of them before backward has ended."""

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
    """Returns whether the weights are equal bit for bit."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def distance(a: Weights, b: Weights) -> float:
    """Returns the largest difference, relative to the largest weight of the same tensor (or to 1, if that is less)."""
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max() / b[n].abs().max().clamp(min=1.0)) for n in a)


# Sums of float64 gradients in another order: a few ulps (2e-16) a step, carried through a few steps of a tame problem.
ROUNDING = 1e-12
