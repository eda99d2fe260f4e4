"""Pairs of linear layers cut over workers: against serial training, layer by layer, in bytes, and what is refused."""

from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
import whole_runs
from oracles import CLASSES, FEATURES, Case, Plan, distance, identical, mlp64, momentum, serial, train
from torch import nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.engine.training.evaluations import Evaluations
from paceline.exchange.collectives import Fabric, Ring
from paceline.exchange.compress import TopK, WireBFloat16
from paceline.strategies import World
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.easgd import EASGD
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.cut import cut_over
from paceline.strategies.tensor_parallel.find import all_pairs, kinds_of, paired, planned, vocabulary_of
from paceline.strategies.tensor_parallel.group import TensorGroup
from paceline.strategies.tensor_parallel.layers import ColumnLinear, RowLinear
from paceline.tasks.models.gpt import BlockKind, TransformerBlock
from paceline.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.dist


def two_pairs64() -> nn.Sequential:
    """Two pairs, so that the second sends gradients back; a layer alone; dropout outside of pairs."""
    return nn.Sequential(
        OrderedDict(
            a=nn.Linear(FEATURES, 8),
            relu=nn.ReLU(),
            b=nn.Linear(8, 6, bias=False),
            norm=nn.LayerNorm(6),
            drop=nn.Dropout(0.0),
            c=nn.Linear(6, 12),
            gelu=nn.GELU(),
            d=nn.Linear(12, 5),
            tanh=nn.Tanh(),
            e=nn.Linear(5, CLASSES),
        )
    ).double()


WHOLE = ("norm.weight", "norm.bias", "d.bias", "e.weight", "e.bias")
CASE = Case([[4, 4], [3, 0], *[[4, 4]] * 18], model=two_pairs64, optimizer=momentum)
ONE = Case([[5], [3], [1], [4]], model=two_pairs64, optimizer=momentum)


@pytest.mark.parametrize("degree", [2, 4])
def test_a_replica_trains_as_one_worker(fabric, degree):
    results = fabric(degree, train, Plan(TensorParallel(degree), BSP(), ONE))
    assert distance(results[0]["whole"], serial(ONE)) < 1e-13
    assert all(result["whole"] is None for result in results[1:])
    assert None not in results[0]["losses"] and set(results[1]["losses"]) == {None}


@pytest.mark.parametrize("collective", [Fabric(), Ring()], ids=["fabric", "ring"])
def test_replicas_of_two_train_as_one_worker_with_all_samples_after_20_steps(fabric, collective):
    results = fabric(4, train, Plan(TensorParallel(2, collective), BSP(collective=collective), CASE))
    assert distance(results[0]["whole"], serial(CASE)) < 1e-12
    assert identical(results[0]["weights"], results[2]["weights"])


def test_what_is_whole_stays_the_same_bits_on_all_workers_of_a_replica(fabric):
    results = fabric(2, train, Plan(TensorParallel(2), BSP(), Case([[4]] * 6, model=two_pairs64, optimizer=momentum)))
    one, other = (result["weights"] for result in results)
    assert all(torch.equal(one[name], other[name]) for name in WHOLE)
    assert not torch.equal(one["a.weight"], other["a.weight"])


def attention64(n_kv_head: int = 2) -> nn.Sequential:
    """Three places of width 8, four heads; a block has two pairs."""
    return nn.Sequential(
        OrderedDict(
            enter=nn.Linear(FEATURES, 24),
            places=nn.Unflatten(1, (3, 8)),
            block=TransformerBlock(8, 4, n_kv_head, dropout=0.0),
            flatten=nn.Flatten(),
            leave=nn.Linear(24, CLASSES),
        )
    ).double()


@pytest.mark.parametrize(
    ("degree", "model"), [(2, attention64), (4, lambda: attention64(4))], ids=["2 groups", "4 heads"]
)
def test_attention_is_cut_by_groups_of_heads_and_trains_as_one_worker(virtual_workers, degree, model):
    case = Case([[5], [3], [1], [4]], model=model, optimizer=momentum)
    results = virtual_workers(degree, train, Plan(TensorParallel(degree), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-13
    held = results[0]["weights"]
    assert held["block.attention.qkv.weight"].shape == ((8 + 2 * degree * 2) // degree, 8)
    assert held["block.attention.project.weight"].shape == (8, 8 // degree)
    assert held["block.mlp.expand.weight"].shape == (32 // degree, 8)


def test_a_blocks_two_pairs_are_summed_in_forward_and_in_backward(virtual_workers):
    strategy = TensorParallel(2, Fabric())
    with torch.device("meta"):
        [stated, _] = strategy.cost(strategy.split(attention64()), torch.empty(4, FEATURES, dtype=torch.float64))
    assert stated == Fabric().traffic(8 * 4 * (4 * 3 * 8), World(2))
    case = Case([[4]], model=attention64)
    results = virtual_workers(2, train, Plan(TensorParallel(2), BSP(), case))
    assert all(result["ledger"] == pytest.approx(stated) for result in results)


def sums_of_a_block(comm: Comm) -> list[Counter[str]]:
    """Messages of a block's forward, and of its backward pass."""
    group = TensorGroup(comm.size)
    part = cut_over(nn.Sequential(TransformerBlock(8, 4, 4, dropout=0.0)).double(), group)[comm.rank]
    group.join(part, comm)
    x = torch.ones(2, 3, 8, dtype=torch.float64, requires_grad=True)
    before = Counter(comm.ledger.messages)
    y = part(x).sum()
    between = Counter(comm.ledger.messages)
    y.backward()
    return [between - before, Counter(comm.ledger.messages) - between]


def test_a_block_makes_two_all_reduces_in_forward_and_two_in_backward_and_nothing_else(virtual_workers):
    assert virtual_workers(2, sums_of_a_block) == [[{"all_reduce": 2}, {"all_reduce": 2}]] * 2


def test_a_layer_within_layers_that_has_two_places_is_whole():
    shared = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    own = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert all_pairs(nn.Sequential(shared, own, shared)) == [("1.0", "1.2")]


def test_other_sync_modes_agree_piece_by_piece(virtual_workers):
    """Local SGD on two replicas of two is that on two replicas of one."""
    results = virtual_workers(4, train, Plan(TensorParallel(2), LocalSGD(3), CASE))
    [plain, _] = virtual_workers(2, train, Plan(DataParallel(), LocalSGD(3), CASE))
    assert distance(results[0]["whole"], plain["whole"]) < 1e-12


def test_pieces_keep_the_attributes_that_a_model_gives_its_parameters():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    for name, parameter in model.named_parameters():
        vars(parameter)["of"] = name
    for part in TensorParallel(2).split(model):
        assert [vars(each)["of"] for each in part.parameters()] == [name for name, _ in model.named_parameters()]


def test_pieces_are_columns_of_the_first_and_rows_of_the_second():
    model = two_pairs64()
    one, other = TensorParallel(2).split(model)
    a, b = model.get_parameter("a.weight"), model.get_parameter("b.weight")
    assert isinstance(one.a, ColumnLinear) and isinstance(one.b, RowLinear) and isinstance(one.e, nn.Linear)
    assert torch.equal(torch.cat([one.a.weight, other.get_parameter("a.weight")]), a)
    assert torch.equal(torch.cat([one.b.weight, other.get_parameter("b.weight")], dim=1), b)
    assert torch.equal(one.get_parameter("d.bias"), model.get_parameter("d.bias"))


@pytest.mark.parametrize(
    ("layers", "pairs"),
    [
        ("L r L", ["02"]),
        ("L L L", ["01"]),
        ("L r L r L r L", ["02", "46"]),
        ("L n L r L", ["24"]),
        ("L r n L", []),
        ("n L", []),
    ],
)
def test_a_linear_layer_is_paired_with_the_next_if_only_elementwise_ones_are_between(layers, pairs):
    kinds = {"L": lambda: nn.Linear(4, 4), "r": nn.ReLU, "n": lambda: nn.LayerNorm(4)}
    named = {str(i): kinds[kind]() for i, kind in enumerate(layers.split())}
    assert ["".join(pair) for pair in paired(named)] == pairs


class ScaledLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(input)


class CalledLinear(nn.Linear):
    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        return 3 * super().__call__(input)


class SummingReLU(nn.ReLU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) / input.sum(-1, keepdim=True)


def hooked(name: str) -> nn.Linear:
    layer = nn.Linear(4, 4)
    getattr(layer, name)(lambda module, given, *output: None)
    return layer


def patched() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.forward = lambda input: 3 * nn.Linear.forward(layer, input)
    return layer


OWN = {
    "forward": lambda: ScaledLinear(4, 4),
    "call": lambda: CalledLinear(4, 4),
    "patched": patched,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "hook": lambda: hooked("register_forward_hook"),
    "pre-hook": lambda: hooked("register_forward_pre_hook"),
    "backward hook": lambda: hooked("register_full_backward_hook"),
    "backward pre-hook": lambda: hooked("register_full_backward_pre_hook"),
}


@pytest.mark.parametrize("own", OWN)
def test_a_linear_layer_that_computes_more_than_torchs_is_whole(own):
    """Its piece would compute what torch's does, and nothing else."""
    model = nn.Sequential(OWN[own](), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert all_pairs(model) == [("2", "4")]
    assert vocabulary_of(nn.Sequential(nn.Embedding(4, 4), OWN[own]())) == []
    with pytest.raises(ConfigError, match=r"plan.0=column: 0 is of class .* and must be an nn.Linear without a"):
        planned(model, {"0": "column"})


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_weight_of_which_workers_train_pieces_is_refused(kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    getattr(model[4].weight, kind)(lambda given: None)
    assert kinds_of(model, 2) == {"0": "column", "2": "row"}
    getattr(model[2].bias, kind)(lambda given: None)
    with pytest.raises(ConfigError, match=r"strategy.degree=2: parameter 2\.bias has a hook, and the pieces"):
        kinds_of(model, 2)


def test_what_is_between_two_linear_layers_must_be_torchs_own():
    assert not all_pairs(nn.Sequential(nn.Linear(4, 4), SummingReLU(), nn.Linear(4, 4)))


@pytest.mark.parametrize("collective", [Fabric(), Ring()], ids=["fabric", "ring"])
def test_two_sums_a_pair_but_none_back_to_what_is_not_trained(virtual_workers, collective):
    strategy = TensorParallel(2, collective)
    case = Case([[4]], model=two_pairs64)
    with torch.device("meta"):
        [stated, _] = strategy.cost(strategy.split(two_pairs64()), torch.empty(4, FEATURES, dtype=torch.float64))
    # forward: b's and d's outputs; backward: c's inputs, and none of a's, which nobody asks for
    assert stated == collective.traffic(8 * 4 * (6 + 5 + 6), World(2))
    results = virtual_workers(2, train, Plan(TensorParallel(2, collective), BSP(), case))
    assert all(result["ledger"] == pytest.approx(stated) for result in results)


@pytest.mark.parametrize(
    ("degree", "model", "says"),
    [
        (
            3,
            mlp64,
            r"strategy.degree=3: 10 outputs of the layer 0 .*Choose 9 or 12 of them, or strategy.degree=2 or 5\.$",
        ),
        (16, mlp64, r"strategy.degree=16: 10 outputs of the layer 0 .*Choose 16 of them"),
        (4, attention64, r"degree=4 does not divide the 2 keys and values a place of block.attention. Choose 2\.$"),
        (3, lambda: attention64(4), r"degree=3 does not divide the 4 keys .*. Choose 2 or 4\.$"),
        (2, lambda: attention64(1), r"the 1 keys and values .*. Choose more of them \(model.n_kv_head\)"),
        (
            4,
            lambda: nn.Sequential(TransformerBlock(8, 4, 4, 0.0, kind=BlockKind(6, gated=True))),
            r"degree=4 does not divide the 6 units of the feed-forward layer of 0.mlp. Choose 2\.$",
        ),
        (2, lambda: nn.Sequential(nn.Linear(6, 4)), "no two linear layers with only element-wise ones between"),
        (2, lambda: nn.Bilinear(2, 2, 2), "strategy: Bilinear has no two linear layers"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_could(degree, model, says):
    with pytest.raises(ConfigError, match=says):
        TensorParallel(degree).split(model())


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=asp",), "strategy=tensor: holds some parameters whole .* sync=asp lets replicas .*Choose sync=bsp"),
        (("sync=fedavg",), "strategy=tensor: holds some parameters whole .* sync=fedavg lets replicas"),
        (
            ("compress=topk",),
            "strategy=tensor: holds some parameters whole .* compress=topk chooses .*Choose compress=none",
        ),
        (("sync=gossip", "compress=topk"), "strategy=tensor: .* compress=topk chooses"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_would_let_shared_parameters_drift_apart_is_refused(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "hardware.workers=4", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    "sync",
    [BSP(compress=WireBFloat16()), LocalSGD(2), Gossip(), ParameterServer(), EASGD()],
    ids=lambda sync: type(sync).__name__,
)
def test_what_is_whole_stays_alike_under_modes_that_are_taken(virtual_workers, sync):
    case = Case([[4, 4, 4]] * 5, model=two_pairs64, optimizer=momentum)
    results = virtual_workers(6 + 2 * sync.servers, train, Plan(TensorParallel(2), sync, case))
    for one, other in ((results[i]["weights"], results[i + 1]["weights"]) for i in (0, 2, 4)):
        assert all(torch.equal(one[name], other[name]) for name in WHOLE)


def test_and_would_not_under_those_that_are_refused(virtual_workers):
    case = Case([[4, 4, 4]] * 5, model=two_pairs64, optimizer=momentum)
    results = virtual_workers(6, train, Plan(TensorParallel(2), BSP(compress=TopK(0.1)), case))
    assert not torch.equal(results[0]["weights"]["e.weight"], results[1]["weights"]["e.weight"])


# -- whole runs

TINY = ("tracking=none", "strategy=tensor", "model.hidden=[16,12]", "batch_size=8", "data.limit=96", "steps=8")


def trained(*overrides: str, **how: str) -> tuple[dict[str, torch.Tensor], dict]:
    return whole_runs.trained(*(() if "resume" in how else TINY), *overrides, **how)


@pytest.mark.slow
def test_a_run_has_the_bits_bytes_and_memory_of_the_virtual_cluster_and_its_plan(here):
    real, told = trained("hardware.workers=2", "hardware.threads=1")
    modelled, of_model = trained("hardware.workers=2", "hardware=virtual")
    assert distance(real, modelled) < 1e-6
    for summary in (told, of_model):
        assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
        assert summary["mesh"] == {"replica": 1, "tensor": 2} and summary["stages"] == 1
    assert told["predicted"]["memory"] == of_model["predicted"]["memory"]
    kinds = ("parameters", "gradients", "optimizer", "buffers")
    assert [told["memory"][kind] for kind in kinds] == [told["predicted"]["memory"][kind] for kind in kinds]


@pytest.mark.slow
def test_a_resumed_run_and_one_that_begins_with_a_checkpoint_have_all_pieces(here):
    overrides = ("hardware.workers=2", "hardware.threads=1")
    whole, _ = trained(*overrides)
    trained(*overrides, "steps=4", "checkpoint.every_steps=4", name="half")
    assert identical(trained("steps=8", resume="half")[0], whole)
    begun, _ = trained(*overrides, "steps=1", "optimizer.lr=1e-30", "weights=runs/half/checkpoints/step-00000008")
    assert distance(begun, whole) < 1e-6


def test_a_plan_counts_each_entry_once():
    plan = prepare([*TINY]).plan()
    whole = prepare(["tracking=none", "model.hidden=[16,12]"]).plan()
    assert sum(part.own for part in plan.parts) == whole.parts[0].parameters
    assert sum(part.parameters for part in plan.parts) > whole.parts[0].parameters


def test_whoever_looks_at_weights_drains_the_strategy_first(here, monkeypatch):
    """Before the evaluation after the first of two epochs, and at the end; by both workers of a virtual pipeline."""
    told: list[str] = []
    step, judge = Pipeline.forward_backward, Evaluations._judge
    monkeypatch.setattr(Pipeline, "forward_backward", lambda self, batch: (told.append("step"), step(self, batch))[1])
    monkeypatch.setattr(Pipeline, "drain", lambda self: told.append("drain"))
    monkeypatch.setattr(Evaluations, "_judge", lambda *given: (told.append("judge"), judge(*given))[1])
    asked = ["tracking=none", "strategy=pipeline", "hardware=virtual", "data.limit=32", "batch_size=8", "epochs=2"]
    prepared = prepare(asked)
    experiment = prepared.experiment
    parts = assemble(experiment, ())
    directory = RunDirectory.create(Path("runs"), "one")
    run_virtual(prepared.assignment(directory, prepared.plan()), parts, cluster_of(parts, experiment.hardware))
    epoch = ["step"] * 2 * parts.deal().steps_per_epoch
    assert sorted(told) == sorted([*epoch, "drain", "drain", "judge"] * 2)
    first = told.index("judge")
    assert told[:first].count("drain") == 2 and told[first - 1] == "drain" and told[-1] == "judge"
