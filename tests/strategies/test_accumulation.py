"""accumulate=k: a batch in k micro-batches with one exchange and one update equals the batch in one piece."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from choices import STRATEGIES, SYNCS
from oracles import (
    FEATURES,
    IMAGE,
    ROUNDING,
    Case,
    Plan,
    branching64,
    distance,
    images64,
    mlp64,
    momentum,
    serial,
    train,
    workers_of,
)
from torch import Tensor, nn

from paceline.batches import Fields, lone
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.config.experiment import shipped
from paceline.strategies import Batch, Strategy, Sync
from paceline.strategies.core.accumulation import Accumulation
from paceline.strategies.core.protocols import accumulated_by
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.domain import DomainParallel
from paceline.strategies.offload import Offload
from paceline.strategies.single import Single
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.torch_ddp import TorchDDP
from paceline.strategies.torch_fsdp import TorchFSDP
from paceline.strategies.zero import Zero
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.base import mean_cross_entropy
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.testing.fabrics import FABRICS

slow = pytest.mark.slow
UNEVEN = [[5, 3], [4, 2], [1, 0], [2, 2]]  # by step and replica; fewer samples than micro-batches among them


# -- how a batch is cut


class Noting(Strategy):
    """Notes the batches that it is given."""

    def __init__(self, together: bool = False) -> None:
        self.traits = replace(self.traits, passes_together=together)
        self.seen: list[Batch] = []

    def prepare(self, model: Any, loss: Any, comm: Any, before_backward: Any) -> None: ...

    def forward_backward(self, batch: Batch) -> Tensor | None:
        self.seen.append(batch)
        return torch.ones(()) if batch.size else None


def batch_of(size: int, total: int = 20) -> Batch:
    return Batch(torch.arange(3.0 * size).view(size, 3), torch.arange(size), total)


@pytest.mark.parametrize(
    ("size", "together", "sizes"),
    [
        (8, False, [2, 2, 2, 2]),
        (7, False, [2, 2, 2, 1]),
        (2, False, [1, 1]),  # what has no samples is left out
        (0, False, [0]),  # somebody waits for a backward pass
        (2, True, [1, 1, 0, 0]),  # others make four passes, and wait for this one in each
        (0, True, [0, 0, 0, 0]),
    ],
)
def test_micro_batches_are_the_batch_cut_as_evenly_as_can_be_and_the_last_one_says_so(size, together, sizes) -> None:
    strategy, batch = Noting(together), batch_of(size)
    mean = Accumulation(4).forward_backward(strategy, batch)
    assert [each.size for each in strategy.seen] == sizes
    assert [each.last for each in strategy.seen] == [False] * (len(sizes) - 1) + [True]
    assert torch.equal(torch.cat([lone(each.targets) for each in strategy.seen]), lone(batch.targets))
    assert all(each.share == batch.share and each.total == 20 for each in strategy.seen)
    assert (mean is None) == (size == 0)


def test_one_micro_batch_changes_nothing() -> None:
    strategy, batch = Noting(), batch_of(5)
    alone = Accumulation(1)
    alone.forward_backward(strategy, batch)
    assert strategy.seen == [batch]
    tell = lambda roots, last: None  # noqa: E731
    assert alone.weighing(F.cross_entropy) is F.cross_entropy and alone.telling(tell) is tell


def test_only_the_last_backward_pass_is_told_to_be_the_last() -> None:
    told: list[bool] = []

    class Telling(Noting):
        def forward_backward(self, batch: Batch) -> Tensor | None:
            tell([], True)
            tell([], False)
            return None

    accumulation = Accumulation(3)
    tell = accumulation.telling(lambda roots, last: told.append(last))
    accumulation.forward_backward(Telling(), batch_of(7))
    assert told == [False, False, False, False, True, False]


# -- the gradient, against plain torch


def weighted(outputs: Tensor, targets: Fields) -> Tensor:
    spec = DataSpec((FEATURES,), classes=4, weights=True)
    return CrossEntropy().function(spec)(outputs, targets)


@pytest.mark.parametrize("k", [2, 3, 7, 16])
def test_weighted_samples_count_by_their_weights_whatever_micro_batch_they_are_in(k: int) -> None:
    torch.manual_seed(0)
    model, x, y = mlp64(), torch.randn(11, FEATURES).double(), torch.randint(4, (11,))
    w = torch.rand(11).double() * torch.tensor([0.0, 5.0, 1.0]).repeat(4)[:11]
    wanted = (F.cross_entropy(model(x), y, reduction="none") * w).sum() / 11
    wanted.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    strategy, accumulation = Single(), Accumulation(k)
    strategy.prepare(model, accumulation.weighing(weighted), cast(Any, None), lambda roots, last: None)
    targets = Fields({"targets": y, "weights": w})
    mean = accumulation.forward_backward(strategy, Batch(x, targets, 11))
    assert mean is not None and not mean.requires_grad
    assert float(mean) == pytest.approx(wanted.item(), rel=1e-12)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, gradient, rtol=1e-12, atol=1e-14)


@dataclass(frozen=True)
class Way:
    strategy: type[Strategy]
    knobs: dict[str, Any] = field(default_factory=dict)
    sizes: list[list[int]] = field(default_factory=lambda: UNEVEN)
    sync: type[Sync] = BSP
    sync_knobs: dict[str, Any] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)


def words64() -> nn.Sequential:
    """An embedding, a pair of layers, and a head that tensor workers cut by its tokens."""
    layers = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Linear(6, 9)
    return nn.Sequential(*layers).double()


@mean_cross_entropy
def of_words(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class OfWords(Case):
    def step(self, step: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(9, (sum(self.sizes[step]), 5), generator=torch.Generator().manual_seed(step))
        return tokens[:, :-1], tokens[:, 1:]


ALONE = [[sum(step)] for step in UNEVEN]
BRANCHES = {"model": branching64, "branches": [[True, False], [False, True], [True, False], [False, False]]}
WAYS = {
    "serial": Way(Single, sizes=ALONE),
    "two replicas": Way(DataParallel),
    "naive": Way(DataParallel, sync=NaiveBSP),
    "small buckets": Way(DataParallel, sync_knobs={"bucket_mb": 1e-4, "first_bucket_mb": 1e-5}),
    "optimizer shared out": Way(DataParallel, sync_knobs={"shard": "optimizer"}),
    "gradients shared out": Way(DataParallel, sync_knobs={"shard": "gradients", "bucket_mb": 1e-4}),
    "branches": Way(DataParallel, sync_knobs={"find_unused": True}, case=BRANCHES),
    "tensor": Way(TensorParallel, {"degree": 2}),
    "vocabulary": Way(TensorParallel, {"degree": 2, "vocabulary": True}, case={"model": words64, "loss": of_words}),
    "domain": Way(DomainParallel, {"degree": 2, "image": list(IMAGE)}, case={"model": images64, "shape": IMAGE}),
    "offload": Way(Offload, {"prefetch": 0}),
}
FAST = "two replicas", "gradients shared out", "vocabulary"
OF_TORCH = {
    "ddp": Way(TorchDDP),
    "ddp with branches": Way(TorchDDP, {"find_unused": True}, case=BRANCHES),
    "fsdp": Way(TorchFSDP),
}


def trained(way: Way, accumulate: int, fabric: str = "virtual") -> tuple[Case, Plan, list[dict[str, Any]]]:
    make = OfWords if way.case.get("model") is words64 else Case
    case = make(way.sizes, **{"model": mlp64, "optimizer": momentum, **way.case})
    plan = Plan(way.strategy(**way.knobs), way.sync(**way.sync_knobs), case, accumulate=accumulate)
    return case, plan, FABRICS[fabric](workers_of(plan), train, plan)


@pytest.mark.parametrize("k", [3, pytest.param(2, marks=slow), pytest.param(8, marks=slow)])
@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in FAST else slow) for way in WAYS])
def test_it_trains_as_one_worker_on_whole_batches_does(way: str, k: int) -> None:
    case, plan, results = trained(WAYS[way], k)
    assert distance(results[plan.strategy.loss_part]["whole"], serial(case)) < ROUNDING


@pytest.mark.dist
@slow
@pytest.mark.parametrize("way", [*WAYS, *OF_TORCH])
def test_so_it_does_on_processes(way: str, fork_server: None) -> None:
    case, plan, results = trained((WAYS | OF_TORCH)[way], 3, "process")
    assert distance(results[plan.strategy.loss_part]["whole"], serial(case)) < ROUNDING


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "small buckets" else slow) for way in WAYS])
def test_replicas_exchange_once_a_step_beside_the_last_backward_pass_and_the_loss_is_the_batchs(way: str) -> None:
    _, _, plain = trained(WAYS[way], 1)
    case, plan, results = trained(WAYS[way], 3)
    for one, other in zip(results, plain, strict=True):
        if plan.strategy.parts == 1:
            assert one["ledger"] == other["ledger"]
            assert one["launched"] == other["launched"]
        if way == "small buckets":
            assert [n > 0 for n in one["launched in backward"]] == [n > 0 for n in other["launched in backward"]]
        for mine, its in zip(one["losses"], other["losses"], strict=True):
            assert mine is its is None or mine == pytest.approx(its, rel=1e-12)
    assert way != "small buckets" or sum(results[0]["launched in backward"]) > len(case.sizes)


MODES = sorted(SYNCS)


def optimizer_of(sync: str) -> Callable[..., torch.optim.Optimizer]:
    """That this mode steps with."""
    wanted = dict(SYNCS[sync].trial.optimizer)
    if not wanted:
        return momentum
    chosen = shipped("optimizer", str(wanted.pop("optimizer")))
    knobs = chosen.knobs | {key.removeprefix("optimizer."): value for key, value in wanted.items()}
    return partial(getattr(torch.optim, chosen.target.rpartition(".")[2]), **knobs)


QUICK = "asp", "local_sgd", "onebit_adam"


@pytest.mark.parametrize("sync", [pytest.param(sync, marks=[] if sync in QUICK else slow) for sync in MODES])
def test_every_sync_mode_makes_of_accumulated_gradients_what_it_makes_of_whole_ones(sync: str) -> None:
    """On the virtual cluster, where also those that wait for nobody take their turns as they did."""
    case = Case(UNEVEN + [[3, 4]] * 3, mlp64, optimizer_of(sync))
    found = []
    for k in (1, 3):
        plan = Plan(DataParallel(), SYNCS[sync], case, accumulate=k)
        found.append(FABRICS["virtual"](workers_of(plan), train, plan))
    for whole, cut in zip(*found, strict=True):
        assert distance(cut["weights"], whole["weights"]) < 10 * ROUNDING
        assert cut["ledger"] == whole["ledger"]


# -- what is refused


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (["accumulate=0"], r"accumulate=0: must be greater than or equal to 1"),
        (["accumulate=9"], r"accumulate=9: a replica's batch has batch_size=8 .* Choose accumulate <= 8"),
        (
            ["strategy=pipeline"],
            r"accumulate=2: strategy=pipeline cuts .* strategy.micro_batches=2 in its place",
        ),
        (["strategy=hybrid"], r"accumulate=2: strategy=hybrid .* strategy.micro_batches=2"),
        (["strategy=torch_pipelining"], r"accumulate=2: strategy=torch_pipelining .* strategy.micro_batches=2"),
        (["strategy=deepspeed_pipeline"], r"accumulate=2: strategy=deepspeed_pipeline .* strategy.micro_batches=2"),
        (["strategy=zero", "strategy.micro_batches=4"], r"accumulate=2, strategy.micro_batches=4: are two names"),
        (["strategy.batch_norm=all"], r"accumulate=2: strategy.batch_norm=all makes the batch norm of all"),
    ],
)
def test_what_cannot_accumulate_is_refused_with_what_to_choose(how: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        prepare(["accumulate=2", "batch_size=8", "hardware.device=cpu", *how]).plan()
    assert caught.value.exit_code == 2


def test_who_has_micro_batches_of_its_own_says_with_which_knob() -> None:
    own = {name for name, each in STRATEGIES.items() if each.traits.own_micro_batches}
    assert own == {"deepspeed_pipeline", "hybrid", "pipeline", "torch_pipelining", "zero"}
    assert {name for name, each in STRATEGIES.items() if accumulated_by(each)} == {"zero"}


# -- plans


SMALL = ["hardware.device=cpu", "hardware.workers=2", "batch_size=16", "model.hidden=[16,12]", "optimizer=adam"]


def test_a_plan_has_the_activations_of_one_micro_batch_and_the_bytes_of_one_exchange() -> None:
    wide = "model.hidden=[512,256]"
    whole, cut = (prepare([*SMALL, wide, f"accumulate={k}"]).plan() for k in (1, 4))
    assert cut.bytes_per_step() == whole.bytes_per_step()
    one, other = whole.peak_memory(), cut.peak_memory()
    assert other["activations"] < 0.35 * one["activations"]  # of the inputs the whole batch is on the device
    assert {**one, "activations": 0} == {**other, "activations": 0}


def test_gradients_that_are_shared_out_are_whole_until_the_last_pass() -> None:
    """ZeRO-2 of ours: as much as a pipeline's micro-batches take."""
    shared = [*SMALL, "sync.shard=gradients"]
    once, cut = (prepare([*shared, f"accumulate={k}"]).plan().peak_memory()["gradients"] for k in (1, 4))
    assert cut > once


def test_deepspeed_is_told_of_it_as_its_own_accumulation() -> None:
    plan = prepare([*SMALL, "strategy=zero", "strategy.stage=1", "accumulate=4"]).plan()
    assert isinstance(plan.strategy, Zero)
    assert plan.strategy.settings["gradient_accumulation_steps"] == 4


def test_batch_norm_over_micro_batches_is_said() -> None:
    notes = prepare(["model=resnet", "data=digits", "accumulate=2", "hardware.device=cpu"]).plan().notes
    assert any(note.startswith("accumulate=2: model=resnet has batch norm") for note in notes)


@slow
def test_the_largest_batch_that_fits_is_one_that_can_be_cut() -> None:
    from paceline.engine.predict.fit import search

    machine = ["hardware=h200", "model=gpt_100m", "data=text", "data.context=1024"]
    whole, cut = (search([*machine, f"accumulate={k}"], []).batch_size for k in (1, 16))
    assert cut > 4 * whole


# -- whole runs

RUN = ["tracking=none", "checkpoint.every=0", "data.limit=70", "epochs=2"]
MLP = [*RUN, "model.hidden=[16,12]", "batch_size=12"]
GPT = [*RUN, "model=gpt", "data=text", "model.n_layer=2", "model.n_head=2", "model.width=16", "batch_size=6"]
GPT += ["steps=4", "model.dropout=0"]
FULL = "steps=2"  # what goes on within a replica is stated of a full batch
CNN = [*RUN, "model=cnn", "model.hidden=[9,7]", "batch_size=12"]


def outcome(how: list[str], **more: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    result = run(how, quiet=True, **more)
    assert result is not None
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_run(how: list[str], away: float) -> None:
    """The last batch of an epoch is smaller, and no multiple of the micro-batches."""
    whole, its = outcome(how)
    cut, summary = outcome([*how, "accumulate=3"])
    assert distance(cut, whole) < away
    assert summary["loss"] == pytest.approx(its["loss"], rel=1e-4)
    if summary["predicted"]["bytes_per_step"] is not None:
        assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-12)
    for kind, size in summary["predicted"]["memory"].items():
        tolerance = 0.15 if kind.endswith("activations") else 0.05
        assert summary["memory"][kind] == pytest.approx(size, rel=tolerance), kind
    assert summary["effective_batch"] == its["effective_batch"] and summary["steps"] == its["steps"]


def test_a_run_equals_one_on_whole_batches_and_sends_and_holds_what_was_planned() -> None:
    check_run([*MLP, "hardware=virtual", "hardware.workers=2"], 1e-6)


@pytest.mark.dist
@slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "away"),
    [
        ([*MLP, "hardware=virtual", "strategy=single"], 1e-6),
        ([*MLP, "hardware=virtual", "hardware.workers=4", "strategy=tensor", FULL], 1e-6),
        ([*GPT, "hardware=virtual", "hardware.workers=4", "strategy=tensor"], 1e-5),
        ([*CNN, "hardware=virtual", "hardware.workers=4", "strategy=domain", FULL], 1e-5),
        ([*MLP, "hardware=virtual", "hardware.workers=2", "strategy=offload"], 1e-6),
        ([*MLP, "hardware.workers=2"], 1e-6),
        ([*MLP, "hardware.workers=3", "sync.shard=gradients"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=torch_ddp"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=torch_zero_optimizer"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=torch_fsdp"], 1e-6),
        ([*GPT, "hardware.workers=2", "strategy=torch_fsdp"], 1e-5),
        ([*GPT, "hardware.workers=3", "strategy=torch_fsdp", "strategy.reshard=false"], 1e-5),
        ([*MLP, "hardware.workers=4", "strategy=torch_fsdp", "strategy.shard_over=2"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=torch_tensor", FULL], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=zero", "strategy.stage=0"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=zero", "strategy.stage=1"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=zero", "strategy.stage=2"], 1e-6),
        ([*MLP, "hardware.workers=2", "strategy=zero", "strategy.stage=3"], 1e-6),
    ],
)
def test_so_do_runs_of_each_strategy(how: list[str], away: float, fork_server: None) -> None:
    check_run(how, away)


@pytest.mark.dist
@slow
@pytest.mark.parametrize("strategy", ["single", "data_parallel", "tensor", "torch_ddp", "torch_fsdp", "zero"])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(strategy: str, fork_server: None) -> None:
    workers = {"single": 1}.get(strategy, 2)
    how = [text for text in MLP if not text.startswith("checkpoint")] + ["checkpoint.every_steps=3", "accumulate=5"]
    how += [f"strategy={strategy}", f"hardware.workers={workers}", "epochs=9"]
    straight, _ = outcome([*how, "steps=5"])
    outcome([*how, "steps=3"], name="first")
    resumed, _ = outcome(["steps=5"], resume="first")
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


@slow
def test_verify_holds_accumulated_steps_to_serial_training(fork_server: None) -> None:
    from paceline.verify import verify

    found = verify(
        ["accumulate=2", "hardware=virtual", "data.limit=64", "batch_size=8", "model.hidden=[16,12]"],
        only=["strategy=single", "bsp_naive", "tensor", "pipeline"],
    )
    words = {row.overrides: row.word for row in found.rows}
    assert found.passed
    assert words["strategy=tensor", "sync=bsp"] == words["strategy=single", "sync=bsp"] == "pass"
    assert words["strategy=pipeline", "sync=bsp"] == "refused"
