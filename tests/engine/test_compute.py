"""What a pass costs, and when its time passes."""

import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.comm.base import Comm
from paceline.comm.network import Network, NetworkLink
from paceline.comm.timeline import Operation
from paceline.comm.virtual import SimulatedCluster, VirtualComm
from paceline.engine.base.memory import activations
from paceline.engine.fabrics import compute
from paceline.engine.fabrics.compute import ComputeModel, ModelledCompute, RealCompute, count_flops
from paceline.engine.fabrics.stragglers import NoStragglers, OneSlow, Stragglers
from paceline.strategies import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.simulate import simulate
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.mlp import MLP

FAST = NetworkLink(0.0, 1e15)  # communication that takes next to no time
IDEAL = Network(FAST, FAST)
IMAGES = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)


def mlp(*hidden: int) -> MLP:
    return MLP(IMAGES, list(hidden))


def images(count: int) -> Tensor:
    return torch.zeros(count, 1, 8, 8)


# -- flops, against what is counted by hand: two for each multiplication with a weight


@given(st.lists(st.integers(1, 40), max_size=3), st.integers(1, 9))
def test_flops_of_an_mlp(hidden: list[int], batch: int) -> None:
    widths = [64, *hidden, 10]
    layers = [a * b for a, b in pairwise(widths)]
    forward, backward, shares = count_flops(mlp(*hidden), images(batch))
    assert forward == 2 * batch * sum(layers)
    assert backward == 2 * batch * (2 * sum(layers) - layers[0])  # the input wants no gradient
    names = [f"hidden{i + 1}.weight" for i in range(len(hidden))] + ["output.weight"]
    assert shares == {name: pytest.approx(flops / sum(layers)) for name, flops in zip(names, layers, strict=True)}


def test_flops_of_a_stage_whose_input_wants_a_gradient() -> None:
    """So the stages of a pipeline have the flops of the whole, and no less."""
    model = mlp(32, 16)
    stages = Pipeline(stages=2, cut=[3]).split(model)
    whole = count_flops(model, images(4))
    first = count_flops(stages[0], images(4))
    second = count_flops(stages[1], torch.zeros(4, 32, requires_grad=True))
    assert first[0] + second[0] == whole[0]
    assert first[1] + second[1] == whole[1]


def test_flops_of_a_cnn() -> None:
    batch, channels, hidden = 4, (6, 16), (120, 84)
    by_hand = {
        "conv1.weight": 8 * 8 * 1 * 6 * 25,
        "conv2.weight": 4 * 4 * 6 * 16 * 25,
        "hidden1.weight": 16 * 2 * 2 * 120,
        "hidden2.weight": 120 * 84,
        "output.weight": 84 * 10,
    }
    forward, backward, shares = count_flops(CNN(IMAGES, channels, 5, hidden), images(batch))
    total = sum(by_hand.values())
    assert forward == 2 * batch * total
    assert backward == 2 * batch * (2 * total - by_hand["conv1.weight"])
    assert shares == {name: pytest.approx(flops / total) for name, flops in by_hand.items()}


def test_flops_of_a_gpt_with_its_attention() -> None:
    batch, context, vocabulary, width, layers = 3, 16, 50, 32, 2
    spec = DataSpec((context,), torch.int64, (context,), vocabulary, None, None)
    model = GPT(spec, n_layer=layers, n_head=4, width=width, dropout=0.1)
    forward, backward, shares = count_flops(model, torch.zeros(batch, context, dtype=torch.int64))
    weights = layers * 12 * width**2 + width * vocabulary
    attention = layers * 2 * context * width  # of each token: with all keys, and with all values
    assert forward == 2 * batch * context * (weights + attention)
    assert backward == 2 * forward
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["block1.mlp.expand.weight"] == pytest.approx(4 * width**2 / weights)
    assert not any("embedding" in name or "norm" in name or "bias" in name for name in shares)


class Forces(torch.nn.Module):
    """An energy and its gradient by the input."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        [force] = torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)
        return force


class Unregistered(torch.nn.Module):
    """Its weight is in a list, of which torch knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [torch.nn.Parameter(torch.randn(8, 2))]
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) @ self.weights[0]


@pytest.mark.parametrize("model", [Forces, Unregistered])
def test_flops_of_a_model_that_torchs_counter_or_the_meta_device_refuses(model: type[torch.nn.Module]) -> None:
    forward, backward, shares = count_flops(model(), torch.randn(4, 8))
    assert forward > 0 and backward > 0 and sum(shares.values()) == pytest.approx(1)


def test_a_model_without_flops_shares_its_time_by_entries() -> None:
    model = nn.Sequential(nn.Embedding(6, 2), nn.LayerNorm(2))
    assert count_flops(model, torch.zeros(3, 4, dtype=torch.int64)) == (
        0.0,
        0.0,
        {"0.weight": 12 / 16, "1.weight": 2 / 16, "1.bias": 2 / 16},
    )
    cost = costs(overhead=0.3)(model, torch.zeros(3, 4, dtype=torch.int64))
    assert (cost.forward, cost.backward) == pytest.approx((0.1, 0.2))


def test_frozen_layers_have_no_share_and_the_others_all_of_it() -> None:
    model = mlp(32, 16)
    model.get_submodule("hidden1").requires_grad_(False)
    _, backward, shares = count_flops(model, images(1))
    assert set(shares) == {"hidden2.weight", "output.weight"} and sum(shares.values()) == pytest.approx(1.0)
    assert backward == 2 * (2 * (32 * 16 + 16 * 10) - 32 * 16)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(64)  # no buffer: `to` leaves it where it is
        self.layer = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1) * self.mask)


def test_a_tensor_that_is_a_plain_attribute_is_no_obstacle() -> None:
    model = Masked()
    assert count_flops(model, images(2))[0] == 2 * 2 * 64 * 3
    assert model.mask.device.type == "cpu"


# -- costs


def costs(
    flops: float = 1e6, overhead: float = 0.0, measured: bool = False
) -> Callable[[nn.Module, Tensor], compute.PassCost]:
    model = ComputeModel(flops, overhead, measured)

    def of(module: nn.Module, inputs: Tensor) -> compute.PassCost:
        model.keep(0, module)
        return model.of(0, inputs)

    return of


def test_a_pass_costs_its_flops_over_the_rate_and_its_part_of_the_overhead() -> None:
    forward, backward, shares = count_flops(mlp(32), images(4))
    cost = costs(flops=1e6, overhead=0.3)(mlp(32), images(4))
    assert cost.shares == shares
    assert cost.forward == pytest.approx(forward / 1e6 + 0.1)
    assert cost.backward == pytest.approx(backward / 1e6 + 0.2)


def test_a_smaller_batch_costs_less_and_no_shape_is_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(compute, "count_flops", lambda module, x: (looked.append(len(x)), count_flops(module, x))[1])
    model = ComputeModel(1e6, 0.0, False)
    model.keep(0, mlp(32))
    full, last = model.of(0, images(8)), model.of(0, images(3))
    assert last.forward == pytest.approx(full.forward * 3 / 8)
    assert model.of(0, images(8)) is full and model.of(0, images(3)) is last
    assert looked == [8, 3]


@pytest.mark.parametrize("recompute", [False, True])
def test_looking_at_a_pass_changes_nothing_around_it(recompute: bool, cache: Path) -> None:
    """Neither the account of activations, nor what is drawn, nor the model."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.compute, x, use_reentrant=False) if recompute else self.compute(x)

        def compute(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layer(x.flatten(1)))

    def outcome(measured: bool | None) -> tuple[Tensor, int]:
        torch.manual_seed(0)
        model = Dropping()
        if measured is not None:
            of = ComputeModel(1e6, 0.0, measured)
            of.keep(0, model)
            model.register_forward_pre_hook(lambda _, inputs: of.of(0, inputs[0]) and None)
        with activations() as account:
            outputs = model(images(5))
        assert all(parameter.grad is None for parameter in model.parameters())
        return outputs, account.peak

    expected, peak = outcome(None)
    for measured in (False, True):
        found, found_peak = outcome(measured)
        assert cache.exists() == measured
        assert torch.equal(found, expected) and found_peak == peak > 0


# -- measured on this machine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paceline" / "compute" / "seconds.json"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every timing is another second longer; the list holds those made."""
    made: list[float] = []

    def take(module: nn.Module, inputs: Tensor) -> float:
        made.append(1.0 + len(made))
        return made[-1]

    monkeypatch.setattr(compute, "_time", take)
    return made


def test_a_measured_pass_is_kept_and_repeats(cache: Path, timed: list[float]) -> None:
    first = costs(measured=True)(mlp(32), images(4))
    assert costs(measured=True)(mlp(32), images(4)) == first
    assert timed == [1.0]
    forward, backward, shares = count_flops(mlp(32), images(4))
    assert first.forward + first.backward == 1.0 and first.shares == shares
    assert first.forward == pytest.approx(forward / (forward + backward))
    assert list(json.loads(cache.read_text()).values()) == [1.0]


def test_another_shape_dtype_or_model_is_measured_by_itself(cache: Path, timed: list[float]) -> None:
    inputs = torch.zeros(4, 64)
    passes = [
        (nn.Linear(64, 2), inputs),
        (nn.Linear(64, 3), inputs),
        (nn.Linear(64, 2), inputs[:3]),
        (nn.Linear(64, 2), inputs.clone().requires_grad_()),
        (nn.Linear(64, 2).double(), inputs.double()),
    ]
    for _ in range(2):
        found = [costs(measured=True)(module, x) for module, x in passes]
    assert timed == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [cost.forward + cost.backward for cost in found] == timed


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"KEY": "fast"}', '{"KEY": -1.0}', '{"KEY": null}'])
def test_a_damaged_cache_is_measured_again(cache: Path, timed: list[float], content: str) -> None:
    costs(measured=True)(mlp(32), images(4))
    [key] = json.loads(cache.read_text())
    cache.write_text(content.replace("KEY", key))
    costs(measured=True)(mlp(32), images(4))
    assert timed == [1.0, 2.0]
    assert json.loads(cache.read_text()) == {key: 2.0}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, cache: Path, timed: list[float]) -> None:
    (tmp_path / "paceline").write_text("a file where the directory should be")
    assert costs(measured=True)(mlp(32), images(4)).forward > 0


@pytest.mark.parametrize("measured", [False, True])
def test_a_layer_may_change_what_it_is_given(cache: Path, measured: bool) -> None:
    inputs = images(4).requires_grad_()
    found = costs(measured=measured)(nn.Sequential(nn.ReLU(inplace=True), mlp(32)), inputs)
    assert found.to_input > 0
    if not measured:
        assert found.forward == costs()(nn.Sequential(nn.ReLU(), mlp(32)), inputs).forward


def test_a_cache_in_which_others_may_write_is_neither_read_nor_written(cache: Path, timed: list[float]) -> None:
    """Else a link that another user puts there would have a file of one's own overwritten."""
    cache.parent.mkdir(parents=True)
    cache.parent.chmod(0o777)
    for _ in range(2):
        assert costs(measured=True)(mlp(32), images(4)).forward > 0
    assert timed == [1.0, 2.0] and not list(cache.parent.iterdir())


def test_what_is_measured_is_a_forward_and_a_backward_pass(cache: Path) -> None:
    small, large = (costs(measured=True)(mlp(width, width), images(256)) for width in (8, 1024))
    assert 0 < small.forward + small.backward < large.forward + large.backward < 60


# -- when time passes on the virtual cluster


def steps_of(
    comm: VirtualComm,
    make: Callable[[], nn.Module] = lambda: mlp(32),
    overhead: float = 0.3,
    stragglers: Stragglers | None = None,
    batches: tuple[int, ...] = (4,),
) -> list[float]:
    """Seconds that each batch takes one worker under plain data parallelism, forward and backward."""
    model = make()
    of_worker = ModelledCompute(comm, ComputeModel(1e6, overhead, False), 0, stragglers or NoStragglers())
    strategy = DataParallel()
    strategy.prepare(model, cross_entropy, comm, lambda roots, last: of_worker.backward_begins())
    of_worker.attach(model)
    seconds = []
    for step, size in enumerate(batches):
        start = comm.now()
        with of_worker.step(step):
            strategy.forward_backward(Batch(images(size), torch.zeros(size, dtype=torch.int64), size))
        seconds.append(comm.now() - start)
    return seconds


def expected(size: int, model: nn.Module, overhead: float = 0.3) -> float:
    forward, backward, _ = count_flops(model, images(size))
    return (forward + backward) / 1e6 + overhead


def on_one_worker(function: Callable[[VirtualComm], Any]) -> Any:
    return SimulatedCluster(1, IDEAL).run(function)[0]


def test_a_step_takes_what_its_passes_cost_and_uneven_batches_what_they_cost() -> None:
    seconds = on_one_worker(lambda comm: steps_of(comm, batches=(8, 8, 3)))
    assert seconds == pytest.approx([expected(size, mlp(32)) for size in (8, 8, 3)])
    assert seconds[2] < seconds[1]


def test_a_strategy_that_does_not_announce_its_only_backward_pass_takes_as_long() -> None:
    def act(comm: VirtualComm) -> list[float]:
        model = mlp(32)
        of_worker = ModelledCompute(comm, ComputeModel(1e6, 0.3, False), 0, NoStragglers())
        of_worker.attach(model)
        moments = []
        for step, size in enumerate((4, 3)):
            with of_worker.step(step):
                model(images(size)).sum().backward()
            moments.append(comm.now())
        return moments

    first, both = on_one_worker(act)
    assert [first, both - first] == pytest.approx([expected(4, mlp(32)), expected(3, mlp(32))])


def test_an_empty_batch_takes_no_time() -> None:
    assert on_one_worker(lambda comm: steps_of(comm, batches=(0, 4)))[0] == 0.0


def test_a_straggler_takes_its_factor_longer() -> None:
    seconds = SimulatedCluster(2, IDEAL).run(lambda comm: steps_of(comm, stragglers=OneSlow(worker=1, factor=4.0)))
    assert seconds[0] == [pytest.approx(expected(4, mlp(32)))]
    assert seconds[1] == [pytest.approx(4.0 * expected(4, mlp(32)))]


def test_evaluation_takes_no_time() -> None:
    def act(comm: VirtualComm) -> float:
        model = mlp(32)
        of_worker = ModelledCompute(comm, ComputeModel(1e6, 0.3, False), 0, NoStragglers())
        of_worker.attach(model)
        model.eval()
        with torch.no_grad():
            model(images(4))
        return comm.now()

    assert on_one_worker(act) == 0.0


def test_backward_takes_its_time_layer_by_layer_before_the_gradient_is_ready() -> None:
    def act(comm: VirtualComm) -> dict[str, float]:
        model, ready = mlp(32, 16), dict[str, float]()
        of_worker = ModelledCompute(comm, ComputeModel(1e6, 0.0, False), 0, NoStragglers())
        of_worker.attach(model)
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.update({name: comm.now()}))
        with of_worker.step(0):
            loss = model(images(4)).sum()
            of_worker.backward_begins()
            ready["loss"] = comm.now()
            loss.backward()
        return ready

    ready = on_one_worker(act)
    forward, backward, shares = count_flops(mlp(32, 16), images(4))
    now = ready["loss"]
    assert now == pytest.approx(forward / 1e6)
    for name in ("output.weight", "hidden2.weight", "hidden1.weight"):
        now += shares[name] * backward / 1e6
        assert ready[name] == pytest.approx(now)
    assert all(moment <= now + 1e-12 for moment in ready.values())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("batch", [8, 7])
def test_a_pipeline_costs_the_passes_of_its_micro_batches_and_another_forward_when_it_recomputes(
    recompute: bool, batch: int
) -> None:
    """All forward, then all backward; each stage's parameters are those of one layer, which has all of backward."""

    def act(comm: VirtualComm) -> tuple[list[float], list[float]]:
        strategy = Pipeline(stages=2, schedule="gpipe", micro_batches=4, cut=[3], recompute=recompute)
        of_worker = ModelledCompute(comm, ComputeModel(1e6, 0.3, False), comm.rank, NoStragglers())
        strategy.prepare(mlp(32), cross_entropy, comm, lambda roots, last: of_worker.backward_begins())
        of_worker.attach(strategy.module)
        computed, elapse = [], comm.elapse
        comm.elapse = lambda seconds: (computed.append(seconds), elapse(seconds))[1]
        for step in range(2):
            with of_worker.step(step):
                strategy.forward_backward(Batch(images(batch), torch.zeros(batch, dtype=torch.int64), batch))
        stage = strategy.split(mlp(32))[comm.rank]
        inputs = images if comm.rank == 0 else lambda size: torch.zeros(size, 32, requires_grad=True)
        flops = [count_flops(stage, inputs(size))[:2] for size in strategy.micro_sizes(batch)]
        forward = [count / 1e6 + 0.1 for count, _ in flops]
        backward = [count / 1e6 + 0.2 for _, count in flops]
        again = [seconds for pair in zip(forward, backward, strict=True) for seconds in pair]
        return computed, 2 * [*forward, *(again if recompute else backward)]

    for computed, passes in SimulatedCluster(2, IDEAL).run(act):
        assert computed == pytest.approx(passes)


SCHEDULES = [("naive", None), ("gpipe", None), ("1f1b", None), ("interleaved", 2), ("zb_h1", None)]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_a_step_of_a_pipeline_takes_on_the_virtual_cluster_what_its_schedule_takes_when_simulated(
    schedule: Any, chunks: int | None, recompute: bool
) -> None:
    """Micro-batches of one size, and messages that take no time."""
    widths = [48, 32, 64, 24, 40]

    def act(comm: VirtualComm) -> tuple[float, list[compute.PassCost]]:
        strategy = Pipeline(2, schedule, 4, recompute=recompute, chunks=chunks)
        model = ComputeModel(1e6, 0.3, False)
        of_worker = ModelledCompute(comm, model, comm.rank, NoStragglers())
        strategy.prepare(mlp(*widths), cross_entropy, comm, lambda roots, last: of_worker.backward_begins(roots))
        of_worker.attach(strategy.module)
        comm.barrier()
        start = comm.now()
        with of_worker.step(0):
            strategy.forward_backward(Batch(images(8), torch.zeros(8, dtype=torch.int64), 8))
        size = strategy.micro_sizes(8)[0]
        costs = []
        for chunk, stage in enumerate(strategy.stages_of(comm.rank)):
            entered = strategy._like(stage - 1, images(size)).requires_grad_() if stage else images(size)
            costs.append(model.of(comm.rank, entered, chunk))
        return comm.now() - start, costs

    # of stages that compute their passes again the backward pass is in one piece
    strategy = Pipeline(2, "1f1b" if recompute and schedule == "zb_h1" else schedule, 4, chunks=chunks)
    found = SimulatedCluster(2, IDEAL).run(act)
    costs = [found[stage % 2][1][stage // 2] for stage in range(len(strategy.holders))]
    again = [cost.forward if recompute else 0.0 for cost in costs]
    times: Any = {
        "F": [cost.forward for cost in costs],
        "B": [cost.backward + more for cost, more in zip(costs, again, strict=True)],
        "I": [cost.to_input for cost in costs],
        "W": [cost.backward - cost.to_input for cost in costs],
    }
    expected = simulate(strategy.schedule, times)
    assert max(seconds for seconds, _ in found) == pytest.approx(expected.seconds)
    assert 0 < expected.bubble < 1


def test_overlapping_buckets_are_worth_something_on_the_virtual_clock() -> None:
    """One bucket leaves when backward is over; small ones leave meanwhile, and only the last is waited for."""
    slow = Network(NetworkLink(0.0, 1e6), FAST)

    def act(comm: VirtualComm, bucket_mb: float) -> float:
        model = mlp(64, 64, 64)
        of_worker, sync = (
            ModelledCompute(comm, ComputeModel(3e6, 0.0, False), 0, NoStragglers()),
            BSP(bucket_mb, bucket_mb),
        )
        strategy = DataParallel()

        def before_backward(roots: Any, last: bool) -> None:
            of_worker.backward_begins()
            sync.before_backward(roots, last)

        strategy.prepare(model, cross_entropy, comm, before_backward)
        of_worker.attach(model)
        sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)
        start = comm.now()
        batch = Batch(images(4), torch.zeros(4, dtype=torch.int64), 8)
        sync.begin(batch)
        with of_worker.step(0):
            strategy.forward_backward(batch)
        sync.update()
        return comm.now() - start

    one, small = (SimulatedCluster(2, slow).run(lambda comm: act(comm, size))[0] for size in (25.0, 0.01))  # noqa: B023
    model = mlp(64, 64, 64)
    forward, backward, _ = count_flops(model, images(4))
    send = sum(4 * parameter.numel() for parameter in model.parameters()) / 1e6  # two workers send S in all
    assert one == pytest.approx((forward + backward) / 3e6 + send)
    assert small < 0.8 * one
    assert small >= max(one - send, send)


# -- real processes


def compute_for(comm: Comm, factor: float, steps: int) -> list[float]:
    """Seconds of each step; worker 1 is slowed. Each computes for some milliseconds and then meets the other."""
    of_worker = RealCompute(comm, OneSlow(worker=1, factor=factor) if factor > 1 else NoStragglers())
    of_worker.attach(nn.Linear(2, 2))
    seconds = []
    for step in range(steps):
        start = time.perf_counter()
        with of_worker.step(step):
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            if comm.rank == 0:
                comm.recv(torch.zeros(1), 1)
            else:
                comm.send(torch.zeros(1), 0)
        seconds.append(time.perf_counter() - start)
    return seconds


@pytest.mark.slow
@pytest.mark.dist
def test_a_slow_worker_is_slower_on_real_processes_and_waiting_for_it_does_not_slow_the_other(workers) -> None:
    """By (factor - 1) times 20 ms of computing. What worker 0 waits for in between is no computing of its own."""
    _, slowed = workers(2, compute_for, 5.0, 12)
    _, even = workers(2, compute_for, 1.0, 12)
    assert 0.06 < statistics.median(slowed[1:]) - statistics.median(even[1:]) < 1.0


class Clock:
    """A worker's end of no fabric, with a clock to set."""

    def __init__(self) -> None:
        self.rank, self.time, self.timeline = 1, 0.0, self
        self.operations: list[Any] = []

    def mark(self) -> float:
        return self.time

    def times(self, *marks: float) -> tuple[float, ...]:
        return marks

    def elapse(self, seconds: float) -> None:
        self.time += seconds


def test_a_worker_is_slowed_by_what_it_computes_itself() -> None:
    """Of 3 s in a pass 1 was spent blocked: the next step waits for (4 - 1) times 2 s."""
    clock = Clock()
    of_worker = RealCompute(cast(Any, clock), OneSlow(worker=1, factor=4.0))
    of_worker.attach(nn.Linear(2, 2))
    clock.operations.append(Operation("before", 1, 0.0, -5.0, -1.0))
    with of_worker.step(0):
        clock.time += 3.0
        clock.operations.append(Operation("within", 1, 0.0, 1.0, 2.0))
    assert clock.time == 3.0
    with of_worker.step(1):
        assert clock.time == 3.0 + 3 * 2.0
        clock.time += 2.0
    assert clock.time == 11.0


class Gpu(Clock):
    """Has kernels take their time after they were launched."""

    kernels = 0.0

    def times(self, *marks: float) -> tuple[float, ...]:
        self.time += self.kernels
        self.kernels = 0.0
        return *marks[:-1], self.time


def test_on_a_gpu_a_pass_is_over_when_its_kernels_are() -> None:
    """Launching them takes 1 s, and they another 2."""
    clock = Gpu()
    of_worker = RealCompute(cast(Any, clock), OneSlow(worker=1, factor=2.0))
    of_worker.attach(nn.Linear(2, 2))
    with of_worker.step(0):
        clock.time += 1.0
        clock.kernels = 2.0
    with of_worker.step(1):
        assert clock.time == 3.0 + (2.0 - 1.0) * 3.0
