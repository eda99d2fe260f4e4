"""A pool of device memory for a model on the host: training is as without it, and the pool keeps to its cap."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from needs import needs_gpu
from oracles import (
    CLASSES,
    FEATURES,
    ROUNDING,
    Case,
    Plan,
    distance,
    identical,
    mlp,
    mlp64,
    momentum,
    samples,
    serial,
    train,
    weights_of,
)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine.planning.build import assemble
from paceline.strategies import Batch
from paceline.strategies.core.state import to_bytes
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.memory import pool as pools
from paceline.strategies.memory.offloaded_step import OffloadedStep
from paceline.strategies.memory.pool import Pool
from paceline.strategies.offload import Offload
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.base import Split
from paceline.tasks.losses.cross_entropy import cross_entropy

MIB = 2**20
UNEVEN = Case([[8], [7], [5], [1]], model=mlp)


NOBODY: Any = None  # a lone worker needs no Comm


def ignore(roots, last) -> None:
    """A sync mode that does not care when backward begins."""


@dataclass
class Trained:
    weights: dict[str, Tensor]
    losses: list[float] = field(default_factory=list)
    random: Tensor = field(default_factory=torch.get_rng_state)  # the generator's state at the end


def fit(strategy, model: nn.Module, batches, optimizer=momentum, loss=cross_entropy) -> Trained:
    """Serial training of `model` under `strategy`."""
    torch.manual_seed(1)
    strategy.prepare(model, loss, NOBODY, ignore)
    steps = optimizer(strategy.module.parameters())
    losses = []
    for inputs, targets in batches:
        steps.zero_grad()
        found = strategy.forward_backward(Batch(inputs, targets, len(targets)))
        losses.append(float(found))
        steps.step()
    state = {name: tensor.clone() for name, tensor in strategy.module.state_dict().items()}
    return Trained(state, losses)


def same(a: Trained, b: Trained) -> bool:
    return identical(a.weights, b.weights) and a.losses == b.losses and torch.equal(a.random, b.random)


def smallest(make_model, batches) -> int:
    """The bytes of the smallest pool that works, as a refusal says."""
    with pytest.raises(ConfigError, match=r"Choose strategy.pool_mb >= ") as caught:
        fit(Offload(pool_mb=1e-5), make_model(), batches)
    return int(float(str(caught.value).split("strategy.pool_mb >= ")[1].split(",")[0]) * MIB)


# -- models of the tasks


@dataclass(frozen=True)
class Task:
    make_model: Callable[[], nn.Module]
    batches: list[tuple[Tensor, Tensor]]


def task_of(*overrides: str) -> Task:
    parts = assemble(engine.prepare(["tracking=none", *overrides]).experiment, ())

    def make_model() -> nn.Module:
        torch.manual_seed(0)
        return parts.make_model()

    spec = parts.data.spec
    split, _ = parts.load()
    assert spec.classes > 1 and isinstance(split, Split)
    return Task(make_model, [(lone(split.samples)[a:b], split.targets[a:b]) for a, b in [(0, 8), (8, 16), (16, 21)]])


TASKS = {
    "mlp": partial(task_of, "model=mlp", "data=digits", "data.limit=64", "model.hidden=[32,16]"),
    "cnn": partial(task_of, "model=cnn", "data=digits", "data.limit=64"),
    "gpt": partial(
        task_of, "model=gpt", "data=text", "data.context=16", "model.width=32", "model.n_layer=2", "model.dropout=0.1"
    ),
}
every_task = pytest.mark.parametrize("name", TASKS)


@every_task
@pytest.mark.parametrize(
    "knobs",
    [{}, {"prefetch": 0}, {"prefetch": 3}, {"activations": False}, {"activations": False, "prefetch": 0}],
    ids=["default", "on demand", "far ahead", "parameters alone", "parameters on demand"],
)
def test_training_with_a_pool_is_training_without_bit_for_bit_dropout_included(name, knobs):
    task = TASKS[name]()
    expected = fit(DataParallel(), task.make_model(), task.batches)
    assert same(fit(Offload(**knobs), task.make_model(), task.batches), expected)
    assert len({*expected.losses}) == len(task.batches)


@pytest.mark.slow
@every_task
def test_the_pool_never_exceeds_its_cap_from_the_smallest_on(name, monkeypatch):
    task = TASKS[name]()
    expected = fit(DataParallel(), task.make_model(), task.batches)
    totals: list[int] = []
    take = Pool.take

    def noting(pool: Pool, kind: str, size: int) -> None:
        take(pool, kind, size)
        if pool.cap is not None:
            totals.append(pool._used.total())

    monkeypatch.setattr(Pool, "take", noting)
    least = smallest(task.make_model, task.batches)
    unbounded = Offload(prefetch=3)
    fit(unbounded, task.make_model(), task.batches)
    peaks = []
    for cap in [least, least + 1024, (least + unbounded._pool.peak) // 2, unbounded._pool.peak]:
        totals.clear()
        strategy = Offload(pool_mb=cap / MIB, prefetch=3)
        assert same(fit(strategy, task.make_model(), task.batches), expected)
        assert 0 < max(totals) <= cap
        assert sum(strategy._pool.peaks.values()) == max(totals)
        peaks.append(max(totals))
    assert peaks == sorted(peaks) and peaks[-1] > peaks[0]
    with pytest.raises(ConfigError):
        fit(Offload(pool_mb=(least - 1024) / MIB), task.make_model(), task.batches)


class Live(TorchDispatchMode):
    """Bytes of the storages that torch's operations made and that are alive, but for those on the "host"."""

    def __init__(self, of_host: set[int]) -> None:
        super().__init__()
        self.bytes, self._seen, self._of_host = 0, {}, of_host

    def know(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen and storage._cdata not in self._of_host:
            self._seen[storage._cdata] = size = storage.nbytes()
            self.bytes += size
            weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self.bytes -= self._seen.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.know(tensor)
        return out


@every_task
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_what_the_pool_accounts_for_is_what_is_alive_between_layers(name, prefetch, monkeypatch):
    """Counted a second time, by the lives of storages: nothing that was let go of is still held by anybody."""
    task = TASKS[name]()
    inputs, targets = task.batches[0][0].clone(), task.batches[0][1].clone()
    strategy = Offload(prefetch=prefetch)
    fit(strategy, task.make_model(), [(inputs, targets)])
    strategy.module.zero_grad()
    of_host = {p.untyped_storage()._cdata for p in strategy.module.parameters()}
    live, kept, compared = Live(of_host), [], []
    host_bytes = pools.Copier.host_bytes

    def on_host(self, size: int) -> Tensor:
        with cast(Any, torch.utils)._python_dispatch._disable_current_modes():
            room = host_bytes(self, size)
        of_host.add(room.untyped_storage()._cdata)
        kept.append(room)  # so that its number is not another's
        return room

    monkeypatch.setattr(pools.Copier, "host_bytes", on_host)

    def comparing(method):
        def compare(offloaded, *arguments):
            method(offloaded, *arguments)
            compared.append((live.bytes, offloaded.pool.total))

        return compare

    for method in ("leave", "come_back"):
        monkeypatch.setattr(OffloadedStep, method, comparing(getattr(OffloadedStep, method)))
    with live:
        live.know(inputs)
        live.know(targets)
        strategy.forward_backward(Batch(inputs, targets, len(targets)))
    layers = len(cast(nn.Sequential, strategy.module))
    assert len(compared) >= layers + 1
    scalars = 64  # the loss, its gradient, and the like
    assert all(abs(alive - accounted) <= scalars for alive, accounted in compared), str(compared)
    assert live.bytes <= inputs.nbytes + targets.nbytes + scalars


# -- the schedule


@dataclass
class Log:
    """What is copied and what is computed, in the order in which it is asked for."""

    events: list[str] = field(default_factory=list)
    to_device: int = 0
    to_host: int = 0


@pytest.fixture
def log(monkeypatch) -> Log:
    found = Log()
    copy = pools._Thread.copy
    fetch = OffloadedStep._fetch
    run = OffloadedStep.run

    def counted(self, source, target):
        return copy(self, source, target)

    def fetching(self, phase):
        if not isinstance(self._copier, pools.NoCopier):
            found.events.append(f"fetch {phase}")
        before = self.pool.total
        size = fetch(self, phase)
        if not isinstance(self._copier, pools.NoCopier):
            found.to_device += self.pool.total - before
        return size

    def running(self, i, x):
        y = run(self, i, x)
        if not isinstance(self._copier, pools.NoCopier):
            found.events.append(f"ran {i}")
        return y

    def coming_back(self, i):
        if not isinstance(self._copier, pools.NoCopier):
            found.events.append(f"backward {i}")
        come_back(self, i)

    come_back = OffloadedStep.come_back
    monkeypatch.setattr(pools._Thread, "copy", counted)
    monkeypatch.setattr(OffloadedStep, "_fetch", fetching)
    monkeypatch.setattr(OffloadedStep, "run", running)
    monkeypatch.setattr(OffloadedStep, "come_back", coming_back)
    return found


def three_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Linear(9, 7), nn.Linear(7, CLASSES))


def test_the_next_layer_is_fetched_before_this_one_is_computed(log):
    torch.manual_seed(0)
    batch = [(x.float(), y) for x, y in [samples(0, 4)]]
    fit(Offload(prefetch=1), three_layers(), batch)
    # phases 0 1 2 forward, 3 4 5 backward; 3 is the layer of 2, still there
    assert log.events == [
        *("fetch 0", "fetch 1", "ran 0", "fetch 1", "fetch 2", "ran 1", "fetch 2", "ran 2"),
        *("backward 2", "fetch 3", "fetch 4", "backward 1", "fetch 4", "fetch 5", "backward 0", "fetch 5"),
    ]


def test_nothing_is_fetched_ahead_on_demand(log):
    torch.manual_seed(0)
    batch = [(x.float(), y) for x, y in [samples(0, 4)]]
    fit(Offload(prefetch=0), three_layers(), batch)
    assert log.events == [
        *("fetch 0", "ran 0", "fetch 1", "ran 1", "fetch 2", "ran 2"),
        *("backward 2", "fetch 3", "backward 1", "fetch 4", "backward 0", "fetch 5"),
    ]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_what_goes_to_the_device_is_at_most_the_parameters_twice_and_the_activations_once(log, prefetch):
    torch.manual_seed(0)
    strategy = Offload(prefetch=prefetch)
    fit(strategy, three_layers(), [(x.float(), y) for x, y in [samples(0, 64)]])
    weights = sum(p.nbytes for p in strategy.module.parameters())
    assert weights < log.to_device <= 2 * weights + strategy.measured({})["host_activations"]


def test_a_gradient_is_exchanged_while_backward_goes_on(workers):
    """Buckets of one parameter each: all but those of the first layer leave before backward has ended."""
    plan = Plan(Offload(), BSP(bucket_mb=1e-6, first_bucket_mb=1e-6), Case([[3, 3]] * 2))
    for result in workers(2, train, plan):
        launched = [len(names) for names in result["launched"]]
        assert launched == [5, 5] and min(result["launched in backward"]) >= 3


# -- odd models


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = nn.Linear(6, 6), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Counts(nn.Module):
    """A buffer that is changed in its place, one that is replaced, and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))
        self.register_buffer("calls", torch.zeros(()))
        self.scale = torch.full((6,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().sum(0)
        self.calls = self.calls + 1
        return x * self.scale + self.total * 0.01


def tied() -> nn.Sequential:
    shared = nn.Linear(6, 6)
    other = nn.Linear(6, 6)
    other.weight = shared.weight
    return nn.Sequential(shared, nn.Tanh(), shared, nn.ReLU(), other, nn.Linear(6, CLASSES))


def frozen() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, CLASSES))
    model[0].requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


ODD = {
    "tied": tied,
    "frozen": frozen,
    "unused": lambda: nn.Sequential(Unused(), nn.ReLU(), nn.Linear(6, CLASSES)),
    "buffers": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), Counts(), nn.Linear(6, CLASSES)),
    "in place": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES), nn.ELU(inplace=True)
    ),
    "one layer": lambda: nn.Sequential(nn.Linear(6, CLASSES)),
    "views": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, CLASSES), nn.Identity()),
    "two dtypes": lambda: nn.Sequential(nn.Linear(6, 6), ToDouble(), nn.Linear(6, CLASSES).double()),
    "saves on another device": lambda: nn.Sequential(nn.Linear(6, 6), SavesElsewhere(), nn.Linear(6, CLASSES)),
    "recomputed": lambda: nn.Sequential(nn.Linear(6, 6), Recomputed(), nn.Linear(6, CLASSES)),
    "recomputed at the end": lambda: nn.Sequential(nn.Linear(6, 6), Recomputed()),
    "no inputs' graph": lambda: nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, CLASSES)),
}


class Recomputed(nn.Module):
    """Computes everything again in backward. `read`: where the weights were, in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.read: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self._compute, x, use_reentrant=False)
        assert isinstance(y, Tensor)
        return y

    def _compute(self, x: Tensor) -> Tensor:
        self.read.append(self.linear.weight.data_ptr())
        return torch.tanh(self.norm(self.linear(x)))


class SavesElsewhere(nn.Module):
    """Saves a tensor of another device, as fused attention on CUDA saves its random state on the host."""

    def forward(self, x: Tensor) -> Tensor:
        return _SaveElsewhere.apply(x)


class _SaveElsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, torch.empty(2, device="meta"))
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, elsewhere = ctx.saved_tensors
        assert elsewhere.is_meta
        return 2 * x * gradients[0]


class ToDouble(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.double()


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("kind", ODD)
def test_odd_models_train_as_without_a_pool_bit_for_bit(kind, prefetch):
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return ODD[kind]()

    batches = [(x.float(), y) for x, y in (samples(step, n) for step, n in enumerate([8, 8, 5]))]
    assert same(fit(Offload(prefetch=prefetch), make(), batches), fit(DataParallel(), make(), batches))


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_computed_again_reads_the_weights_that_were_fetched(place):
    model = [nn.Sequential(Recomputed(), nn.Linear(6, CLASSES)), nn.Sequential(nn.Linear(6, 6), Recomputed())][place]
    layer = model[place]
    at_home = layer.linear.weight
    strategy = Offload()
    strategy.prepare(model, F.cross_entropy, NOBODY, ignore)
    inputs, targets = samples(0, 4)
    strategy.forward_backward(Batch(inputs.float(), targets, 4))
    assert len(layer.read) == 2 and at_home.data_ptr() not in layer.read
    assert layer.linear.weight is at_home


def test_a_failure_in_backward_leaves_the_layers_their_own_weights():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, CLASSES))
    own = [parameter.data_ptr() for parameter in model.parameters()]

    def fails(outputs: Tensor, targets: Tensor) -> Tensor:
        outputs.register_hook(lambda gradient: torch.linalg.inv(torch.zeros(2, 2)))
        return outputs.sum()

    strategy = Offload()
    strategy.prepare(model, fails, NOBODY, ignore)
    inputs, targets = samples(0, 4)
    with pytest.raises(RuntimeError):
        strategy.forward_backward(Batch(inputs.float(), targets, 4))
    assert [parameter.data_ptr() for parameter in model.parameters()] == own


def test_a_parameter_that_is_never_used_has_no_gradient():
    strategy = Offload()
    strategy.prepare(ODD["unused"](), F.cross_entropy, NOBODY, ignore)
    inputs, targets = samples(0, 4)
    strategy.forward_backward(Batch(inputs.float(), targets, 4))
    have = {name: p.grad is not None for name, p in strategy.module.named_parameters()}
    assert [name for name, there in have.items() if not there] == ["0.never.weight", "0.never.bias"]


def test_an_activation_that_is_overwritten_before_backward_is_an_error_as_in_autograd():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
    inputs, targets = samples(0, 4)
    for strategy in (DataParallel(), Offload(), Offload(prefetch=0)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fit(strategy, model, [(inputs.float(), targets)])


class Crossed(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0]


@pytest.mark.parametrize("model", [lambda: Unused(), lambda: Crossed(nn.Linear(6, 6))])
def test_a_model_that_is_no_chain_of_layers_is_refused(model):
    with pytest.raises(ConfigError, match=r"nn\.Sequential") as caught:
        Offload().split(model())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: nn.Sequential(Pair(), First(), nn.Linear(6, CLASSES)), "puts out a tuple"),
        (lambda: nn.Sequential(nn.Embedding(7, CLASSES, sparse=True), nn.Flatten(1)), "dense gradients"),
    ],
    ids=["two outputs", "sparse gradients"],
)
def test_what_cannot_be_swapped_is_refused_before_training(model, says):
    strategy = Offload()
    inputs = torch.zeros(2, 6, device="meta", dtype=torch.int64 if "sparse" in says or "dense" in says else None)
    with torch.device("meta"):
        parts = strategy.split(model())
    with pytest.raises(ConfigError, match=says):
        targets = torch.zeros(2, dtype=torch.int64, device="meta")
        list(strategy.profile(parts, inputs, targets, F.cross_entropy, torch.device("cpu")))


# -- failures


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("offload", "delayed"))}


class Late(nn.Module):
    """Fails in the given pass, once it is armed."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.armed = when, False

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor) or not self.armed:
            return x.tanh()
        if self.when == "forward":
            raise KeyError("in forward")
        x = x.tanh()

        def fail(_: Tensor) -> None:
            raise KeyError("in backward")

        x.register_hook(fail)
        return x


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_layer_leaves_no_thread(when):
    late = Late(when)
    late.armed = True
    model = nn.Sequential(nn.Linear(6, 6), late, nn.Linear(6, CLASSES))
    inputs, targets = samples(0, 4)
    with pytest.raises(KeyError, match=f"in {when}"):
        fit(Offload(), model, [(inputs.float(), targets)])
    assert threads() == set()


@pytest.mark.parametrize("fails_at", range(12))
def test_an_exception_in_the_background_ends_the_step_with_it_and_leaves_no_thread(fails_at, monkeypatch):
    """Whichever copy it is: of parameters, of an activation out or back, of a gradient."""
    copy_now, made = pools.copy_now, []

    def failing(source: Tensor, target: Tensor) -> None:
        made.append(source.shape)
        if len(made) == fails_at + 1:
            raise ZeroDivisionError(f"copy {fails_at}")
        copy_now(source, target)

    monkeypatch.setattr(pools, "copy_now", failing)
    inputs, targets = samples(0, 4)
    with pytest.raises(ZeroDivisionError, match=f"copy {fails_at}"):
        fit(Offload(), mlp(), [(inputs.float(), targets)])
    assert len(made) > fails_at
    assert threads() == set()


def test_a_step_after_a_failed_one_is_as_if_it_had_not_been():
    late = Late("backward")
    model = nn.Sequential(nn.Linear(6, 6), late, nn.Linear(6, CLASSES))
    inputs, targets = samples(0, 4)
    batch = Batch(inputs.float(), targets, 4)
    strategy = Offload(pool_mb=0.01)
    strategy.prepare(model, F.cross_entropy, NOBODY, ignore)
    late.armed = True
    for _ in range(20):  # what a failed step held does not stay in the account
        with pytest.raises(KeyError):
            strategy.forward_backward(batch)
    late.armed = False
    strategy.module.zero_grad()
    strategy.forward_backward(batch)
    found = [p.grad for p in strategy.module.parameters()]
    model.zero_grad()
    F.cross_entropy(model(batch.inputs), targets).backward()
    assert all(
        torch.equal(cast(Tensor, a), cast(Tensor, p.grad)) for a, p in zip(found, model.parameters(), strict=True)
    )


# -- the delayed update


def one_step_delayed(case: Case) -> dict[str, Tensor]:
    """w_{t+1} = w_t - U(g_t(w_{t-1})), serially: U is the optimizer's, whatever it remembers."""
    newest, before = case.start(), case.start()
    optimizer = case.optimizer(newest.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        before.zero_grad()
        F.cross_entropy(before(inputs), targets).backward()
        gradients = [p.grad.clone() for p in before.parameters()]
        before.load_state_dict(newest.state_dict())
        for p, gradient in zip(newest.parameters(), gradients, strict=True):
            p.grad = gradient
        optimizer.step()
    return weights_of(newest)


def delayed(case: Case, **knobs) -> Plan:
    return Plan(Offload(delayed_update=True, **knobs), BSP(), case)


@pytest.mark.dist
@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_delayed_update_is_the_recursion_bit_for_bit(fabric, prefetch):
    case = Case([[4], [3], [5], [2], [4]], model=mlp)
    (result,) = fabric(1, train, delayed(case, prefetch=prefetch))
    assert identical(result["weights"], one_step_delayed(case))
    assert distance(result["weights"], serial(case)) > 1e-3


@pytest.mark.dist
def test_with_replicas_the_delayed_update_is_the_recursion_for_their_joint_batch(fabric):
    case = Case([[4, 4], [3, 2], [1, 0], [2, 2]], model=mlp64)
    results = fabric(2, train, delayed(case))
    assert identical(results[0]["weights"], results[1]["weights"])
    assert distance(results[0]["weights"], one_step_delayed(case)) < ROUNDING


@pytest.mark.dist
def test_a_delayed_run_goes_on_from_what_it_saved_bit_for_bit(workers):
    whole = Case([[3, 3]] * 5)
    half = Case(whole.sizes[:2])
    halfway = workers(2, train, delayed(half))
    saved = [to_bytes({"weights": halfway[0]["whole"], "sync": halfway[0]["state"]})]
    plan = delayed(whole)
    straight = workers(2, train, plan)
    resumed = workers(2, train, Plan(plan.strategy, plan.sync, whole, state=saved, start=2))
    assert identical(straight[0]["weights"], resumed[0]["weights"])


class Waiting(torch.optim.SGD):
    """A step that ends only once a forward pass has begun since."""

    began = threading.Event()

    def step(self, closure=None):
        assert self.began.wait(20), "nothing was computed meanwhile"
        return super().step(closure)


class Announce(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor) and x.requires_grad:
            Waiting.began.set()
        return x.clone()


def test_the_delayed_update_runs_while_the_next_step_is_computed():
    strategy = Offload(delayed_update=True)
    sync = strategy.own_sync()
    assert sync is not None
    strategy.prepare(nn.Sequential(nn.Linear(6, 6), Announce(), nn.Linear(6, CLASSES)), F.cross_entropy, NOBODY, ignore)
    optimizer = Waiting(strategy.module.parameters(), lr=0.1)
    sync.prepare(dict(strategy.module.named_parameters()), optimizer, cast(Any, Alone()))
    inputs, targets = samples(0, 4)
    batch = Batch(inputs.float(), targets, 4)
    for _ in range(3):
        sync.begin(batch)
        strategy.forward_backward(batch)  # the step before waits for this
        sync_job = cast(Any, sync)._delayed._job
        if sync_job is not None:
            sync_job.result(20)
        Waiting.began.clear()
        sync.update()
    Waiting.began.set()
    sync.finish()
    assert threads() == set()


class Alone:
    """What BSP asks of a group of one."""

    rank, size = 0, 1

    def broadcast(self, tensor: Tensor, src: int):
        return self

    def wait(self) -> None:
        pass


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise ZeroDivisionError("the optimizer")


def test_an_exception_in_the_delayed_update_ends_the_next_step_with_it():
    strategy = Offload(delayed_update=True)
    sync = strategy.own_sync()
    assert sync is not None
    strategy.prepare(mlp(), F.cross_entropy, NOBODY, ignore)
    sync.prepare(
        dict(strategy.module.named_parameters()), Failing(strategy.module.parameters(), lr=0.1), cast(Any, Alone())
    )
    inputs, targets = samples(0, 4)
    batch = Batch(inputs.float(), targets, 4)
    sync.begin(batch)
    strategy.forward_backward(batch)
    sync.update()
    sync.begin(batch)
    strategy.forward_backward(batch)
    with pytest.raises(ZeroDivisionError, match="the optimizer"):
        sync.update()
    for thread in threading.enumerate():  # it has been told, and needs a moment
        if thread.name.startswith("delayed-update"):
            thread.join(10)
    assert threads() == set()


def test_the_delayed_update_refuses_other_sync_modes_and_says_why():
    with pytest.raises(
        ConfigError, match=r"strategy=offload: .*delayed_update=true.*, and sync=asp .*Choose .*or sync=bsp"
    ):
        engine.prepare(["strategy=offload", "strategy.delayed_update=true", "sync=asp"]).plan()


# -- CUDA


def test_memory_is_pinned_once_and_no_longer_than_it_lives(monkeypatch):
    pinned: list[int] = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda at, size, flags: pinned.append(at), cudaHostUnregister=lambda at: pinned.remove(at)
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda _: None)
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: tensor.untyped_storage().data_ptr() in pinned)
    layer, copier = nn.Linear(4, 4, bias=False), object.__new__(pools._Stream)
    for _ in range(2):
        copier.pin(layer.weight.detach())
    assert pinned == [layer.weight.data_ptr()]
    flat = layer.weight.detach().view(-1)
    del layer
    assert pinned == [flat.data_ptr()]
    del flat
    assert pinned == []


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("prefetch", [0, 1])
def test_on_cuda_gradients_are_those_without_a_pool_bit_for_bit_and_take_less_of_the_device(prefetch):
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.Tanh())])

    inputs, targets = torch.randn(64, 512).cuda(), torch.randint(512, (64,)).cuda()

    def gradients_and_peak(strategy, on_device: bool) -> tuple[list[Tensor], int]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        strategy.prepare(make().cuda() if on_device else make(), F.cross_entropy, NOBODY, ignore)
        strategy.forward_backward(Batch(inputs, targets, 64))
        torch.cuda.synchronize()
        gradients = [parameter.grad.cpu() for parameter in strategy.module.parameters()]
        return gradients, torch.cuda.max_memory_allocated() - before

    expected, whole = gradients_and_peak(DataParallel(), on_device=True)
    found, pooled = gradients_and_peak(Offload(prefetch=prefetch), on_device=False)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert 0 < pooled < whole / 2


# -- whole runs

SETTINGS = ["strategy=offload", "tracking=none", "hardware.workers=1", "hardware.device=cpu", "hardware.threads=1"]
SHORT = ["steps=3", "batch_size=8", "checkpoint.every=0", "optimizer=adam"]
WHOLE = {
    "mlp": ["model=mlp", "data=digits", "data.limit=64"],
    "cnn": ["model=cnn", "data=digits", "data.limit=64"],
    "gpt": ["model=gpt", "data=text", "data.context=32", "model.width=32", "model.n_layer=2"],
}


def test_too_small_a_pool_is_refused_before_training_with_the_smallest_that_works():
    with pytest.raises(
        ConfigError, match=r"strategy.pool_mb=0.01: .* layer hidden2.*Choose strategy.pool_mb >= "
    ) as caught:
        engine.prepare([*SETTINGS, "strategy.pool_mb=0.01"]).plan()
    assert caught.value.exit_code == 2
    least = float(str(caught.value).split("strategy.pool_mb >= ")[1].split(",")[0])
    plan = engine.prepare([*SETTINGS, f"strategy.pool_mb={least}"]).plan()
    on_device = {kind: n for kind, n in plan.peak_memory().items() if not kind.startswith("host_")}
    assert sum(on_device.values()) <= least * MIB
    with pytest.raises(ConfigError):
        engine.prepare([*SETTINGS, f"strategy.pool_mb={least - 1 / 512}"]).plan()


@pytest.mark.dist
@pytest.mark.parametrize(
    "more",
    [
        [],
        *(
            pytest.param([knob], marks=pytest.mark.slow)
            for knob in ("strategy.delayed_update=true", "strategy.activations=false")
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", WHOLE)
def test_measured_memory_is_as_stated(name, more, fork_server, tmp_path):
    result = engine.run([*SETTINGS, *SHORT, *WHOLE[name], *more], root=tmp_path, quiet=True)
    assert result is not None
    stated, measured = result.summary["predicted"]["memory"], result.summary["memory"]
    kinds = {"parameters", "gradients", "activations"}
    assert stated.keys() == {*kinds, *(f"host_{kind}" for kind in (*kinds, "optimizer", "buffers"))}
    assert stated.keys() == measured.keys() - {"process_peak", "other"}
    for kind, size in stated.items():
        assert measured[kind] == pytest.approx(size, rel=0.15 if "activations" in kind else 0.05), kind
    assert measured["host_optimizer"] >= 2 * measured["parameters"] > 0


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("more", [[], ["strategy.delayed_update=true"]], ids=str)
def test_the_virtual_cluster_trains_to_the_same_weights_as_processes(more, fork_server, tmp_path):
    from safetensors.torch import load_file

    common = ["strategy=offload", "tracking=none", *SHORT, *WHOLE["mlp"], *more, "hardware.workers=2"]
    found = []
    for hardware in (["hardware.device=cpu", "hardware.threads=1"], ["hardware=virtual"]):
        result = engine.run([*common, *hardware], root=tmp_path / str(len(found)), quiet=True)
        assert result is not None
        found.append(load_file(result.path / "model.safetensors"))
    assert identical(*found)
