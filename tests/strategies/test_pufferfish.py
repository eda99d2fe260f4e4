"""Pufferfish: at full rank factors are the layer; the change in mid-run is a new beginning with them, everywhere."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import distance, identical
from safetensors.torch import load_file
from torch import Tensor, nn
from whole_runs import trained

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.planning.build import assemble
from paceline.strategies.adapt import Adapt, Pufferfish
from paceline.strategies.adapt.pufferfish import Factored, factors, product
from paceline.strategies.core.state import state_of
from paceline.verify.check import verify

SMALL = ("tracking=none", "data.limit=64", "batch_size=8", "steps=5", "evaluate.every=1000", "checkpoint.every=0")
WAY = ("adapt=pufferfish", "adapt.unit=steps", "adapt.warm_up=2")
ON_MLP = (*SMALL, *WAY, "model.hidden=[16,12]")
ON_CNN = (*SMALL, *WAY, "model=cnn", "model.channels=[4,6]", "model.kernel=3", "model.hidden=[16,12]")
DENSE = 64 * 16 + 16 + 16 * 12 + 12 + 12 * 10 + 10
THIN = DENSE - 16 * 12 + 3 * (16 + 12)  # r = 12 / 4


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, padding_mode="circular"),
        nn.Conv2d(6, 6, 3, groups=2),
        nn.Flatten(),
        nn.Linear(6, 5, bias=False),
        nn.Linear(5, 4),
    ).double()


def low_rank(**knobs) -> Adapt:
    following = Pufferfish(**knobs).following
    assert following is not None
    return following


def test_at_full_rank_the_factors_compute_what_the_layer_does() -> None:
    x, dense = torch.randn(3, 1, 9, 9, dtype=torch.float64), model()
    way = low_rank(ratio=1.0)
    thin = way.apply(model())
    thin.load_state_dict(way.carried(thin, state_of(dense)))
    assert [name for name, layer in thin.named_modules() if isinstance(layer, Factored)] == ["1", "4"]
    torch.testing.assert_close(thin(x), dense(x), rtol=1e-12, atol=1e-12)
    merged = way.merged(state_of(thin))
    assert merged.keys() == state_of(dense).keys()
    assert distance(merged, state_of(dense)) < 1e-12


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 3, 2, 2)])
def test_factors_are_the_nearest_matrix_of_their_rank_share_its_scale_and_have_fixed_signs(shape) -> None:
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, v = factors(weight, 2)
    s = torch.linalg.svdvals(weight.flatten(1))
    # Eckart and Young: what is left is the other singular values
    torch.testing.assert_close((weight - product(u, v)).square().sum(), s[2:].square().sum())
    gram = torch.diag(s[:2])
    torch.testing.assert_close(u.flatten(1).T @ u.flatten(1), gram)
    torch.testing.assert_close(v.flatten(1) @ v.flatten(1).T, gram)
    assert all(column[column.abs().argmax()] > 0 for column in u.flatten(1).T)
    assert identical({"u": u, "v": v}, dict(zip("uv", factors(weight.clone(), 2), strict=True)))


def test_the_first_and_the_last_layers_stay_and_so_does_what_is_in_groups_tied_frozen_hooked_or_not_called() -> None:
    def factored(of: nn.Module, **knobs) -> list[str]:
        thin = low_rank(**knobs).apply(of)
        return [name for name, layer in thin.named_modules() if isinstance(layer, Factored)]

    assert factored(model(), keep_first=0) == ["0", "1", "4"]
    assert factored(model(), keep_first=2) == ["4"]
    assert factored(model(), modules=["1"]) == ["1"]
    linear = nn.Linear(4, 4)
    shared = nn.Sequential(nn.Linear(4, 4), linear, linear, nn.Linear(4, 4))
    assert factored(shared) == ["1"] and shared[1] is shared[2]  # one layer twice is one layer
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[2].weight
    with pytest.raises(ConfigError, match="nothing is left to factor: of the 4"):
        factored(tied)
    encoder = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    assert factored(encoder) == ["2"]
    frozen, hooked = model(), model()
    frozen[1].weight.requires_grad_(False)
    hooked.get_parameter("1.bias").register_hook(lambda gradient: 0 * gradient)
    assert factored(frozen) == factored(hooked) == ["4"]
    half = model()
    half[1].bias.requires_grad_(False)
    assert not low_rank().apply(half).get_parameter("1.factor_u.bias").requires_grad
    thin = low_rank(keep_first=0, ratio=0.2).apply(model())
    assert [each.rank for each in thin.modules() if isinstance(each, Factored)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("adapt.ratio=0",), "adapt.ratio=0: must be greater than 0"),
        (("adapt.warm_up=1.5",), "adapt.warm_up=1.5: must be a whole number of steps"),
        (("adapt.warm_up=5",), "a warm-up of 5 steps leaves nothing of the run, which has 5 steps"),
        (("adapt.unit=epochs", "data.limit=null"), "a warm-up of 2 epochs, "),
        (("adapt.keep_first=2",), "adapt=pufferfish: nothing is left to factor: of the 3 linear layers"),
        (("adapt.modules=[conv9]",), "is called conv9; there are hidden1, hidden2, output"),
        (("sync=asp",), "adapt=pufferfish: makes the model another one in mid-run, before one step on all workers"),
        (("sync=parameter_server",), "sync=parameter_server has servers"),
        (("strategy=torch_ddp",), "adapt=pufferfish: makes the model another one in mid-run, before one"),
    ],
)
def test_what_it_does_not_go_with_is_refused_by_name(overrides, says) -> None:
    with pytest.raises(Exception, match="adapt") as caught:
        prepare([*ON_MLP, *overrides]).plan()
    assert says in str(caught.value) and getattr(caught.value, "exit_code", 0) == 2


def test_verify_refuses_what_rounding_may_turn() -> None:
    with pytest.raises(ConfigError, match="adapt=pufferfish: makes the model another one in mid-run, and what is made"):
        verify(["adapt=pufferfish", "tracking=none"])


def test_a_plan_has_both_phases_and_their_mean() -> None:
    plan = prepare([*ON_MLP, "hardware.workers=2"]).plan()
    assert [(phase.first, phase.until, phase.entries) for phase in plan.phases] == [(0, 2, DENSE), (2, 5, THIN)]
    assert plan.bytes_per_step() == 4 * (2 * DENSE + 3 * THIN) / 5
    assert plan.bytes_per_step(done=1) == 4 * (DENSE + 3 * THIN) / 4 and plan.bytes_per_step(done=4) == 4 * THIN
    assert plan.peak_memory()["optimizer"] == 4 * DENSE and plan.peak_memory(done=2)["optimizer"] == 4 * THIN
    assert [each["first_step"] for each in plan.as_dict()["phases"]] == [1, 3]


# -- whole runs


def serially(overrides: tuple[str, ...], replicas: int = 1) -> dict[str, Tensor]:
    """In plain torch: the warm-up, the decomposition, the factors with a new optimizer. As written again."""
    experiment = prepare([*overrides, "strategy=data_parallel", f"hardware.workers={replicas}"]).experiment
    parts = assemble(experiment, ())
    split, partition = parts.load()[0], parts.deal()
    torch.manual_seed(experiment.seed)
    net = parts.make_model()
    assert isinstance(net, nn.Sequential)

    def sgd() -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    optimizer = sgd()
    for step in range(5):
        if step == 2:
            layers = [(name, each) for name, each in net.named_children() if isinstance(each, nn.Linear | nn.Conv2d)]
            for name, layer in layers[1:-1]:
                setattr(net, name, halves(layer))
            optimizer = sgd()
        numbers = torch.cat([partition.indices(step, replica) for replica in range(replicas)])
        taken = split.take(numbers, 0)
        optimizer.zero_grad()
        F.cross_entropy(net(taken.inputs), taken.targets).backward()
        optimizer.step()
    whole: dict[str, Tensor] = {}
    for name, layer in net.named_children():
        if isinstance(layer, nn.Sequential):
            first, second = (layer.get_parameter(f"{i}.weight").detach() for i in (0, 1))
            whole[f"{name}.weight"] = (second.flatten(1) @ first.flatten(1)).view(len(second), *first.shape[1:])
            whole[f"{name}.bias"] = layer.get_parameter("1.bias").detach()
        else:
            whole |= {f"{name}.{own}": each for own, each in layer.state_dict().items()}
    return whole


def halves(layer: nn.Linear | nn.Conv2d) -> nn.Sequential:
    matrix = layer.weight.detach().flatten(1)
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    rank = min(matrix.shape) // 4 or 1
    for i in range(rank):
        if u[:, i][u[:, i].abs().argmax()] < 0:
            u[:, i], vt[i] = -u[:, i], -vt[i]
    if isinstance(layer, nn.Conv2d):
        first: nn.Module = nn.Conv2d(layer.in_channels, rank, 3, padding=1, bias=False)
        second: nn.Module = nn.Conv2d(rank, layer.out_channels, 1)
    else:
        first, second = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features)
    with torch.no_grad():
        first.weight.copy_((s[:rank].sqrt()[:, None] * vt[:rank]).view_as(first.weight))
        second.weight.copy_((u[:, :rank] * s[:rank].sqrt()).view_as(second.weight))
        assert second.bias is not None and layer.bias is not None
        second.bias.copy_(layer.bias)
    return nn.Sequential(first, second)


def check_account(told: dict) -> None:
    """What was sent, and held by kind, is what was planned, of both phases."""
    assert told["wire"]["bytes_per_step"] == told["predicted"]["bytes_per_step"]
    assert {kind: told["memory"][kind] for kind in told["predicted"]["memory"]} == told["predicted"]["memory"]


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("on", [ON_MLP, pytest.param(ON_CNN, marks=pytest.mark.slow)], ids=["mlp", "cnn"])
def test_one_worker_is_plain_torch_bit_for_bit_and_two_are_but_for_the_order_of_sums(here, one_thread, on) -> None:
    alone, told = trained(*on, "hardware=virtual", "hardware.workers=1", name="one")
    assert identical(alone, serially(on))
    check_account(told)
    two, told = trained(*on, "hardware=virtual", "hardware.workers=2", name="two")
    assert distance(two, serially(on, 2)) < 1e-6 < distance(two, alone)
    check_account(told)
    apart, config = (Path("runs/two/factored") / f"factored_{each}" for each in ("model.safetensors", "config.json"))
    ranks = json.loads(config.read_text())["ranks"]
    assert ranks == ({"hidden2": 3} if on is ON_MLP else {"conv2": 1, "hidden1": 4, "hidden2": 3})
    thin = load_file(apart)
    for name in ranks:
        u, v = thin[f"{name}.factor_u.weight"], thin[f"{name}.factor_v.weight"]
        assert torch.equal(product(u, v), two[f"{name}.weight"]) and len(v) == ranks[name]
    assert thin.keys() - two.keys() == {
        f"{name}.factor_{own}" for name in ranks for own in ("u.weight", "v.weight", "u.bias")
    }


@pytest.mark.parametrize(
    "more",
    [
        ("sync=local_sgd", "sync.period=3"),
        pytest.param(("sync=post_local_sgd", "sync.switch_step=3"), marks=pytest.mark.slow),
        pytest.param(("accumulate=3", "clip=norm"), marks=pytest.mark.slow),
        pytest.param(("compress=dgc", "compress.warmup=2", "optimizer.momentum=0"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_each_phase_has_the_bytes_of_its_own_steps_and_may_begin_with_a_small_batch(here, more) -> None:
    """Rounds begin anew with the factors: 5 steps have one of three, 6 have two. Step 6 has what an epoch has left."""
    steps = ("hardware=virtual", "hardware.workers=3", "steps=11", "adapt.warm_up=5")
    _, told = trained(*ON_MLP, *steps, *more, name="uneven")
    check_account(told)


def test_the_scale_of_the_loss_goes_on_and_all_else_begins_anew(here) -> None:
    two = ("hardware=virtual", "hardware.workers=2", "steps=5", "adapt.warm_up=3")
    callbacks = ("callbacks=[noise_scale]", "callbacks.noise_scale.every=1")
    trained(*ON_MLP, *two, *callbacks, "precision=fp16", "precision.grow_every=2", name="scaled")
    lines = [json.loads(line) for line in Path("runs/scaled/metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "step"]
    scales = [line["loss_scale"] for line in told]
    assert [after / before for before, after in pairwise(scales)] == [2, 1, 2, 1]
    assert all("gradient_noise" in line for line in told)


WAYS = {
    "serial": ("strategy=single", "hardware.workers=1"),
    "processes": ("hardware.workers=2", "batch_size=4"),
    "pipeline": ("strategy=pipeline", "strategy.stages=2", "hardware.workers=4", "batch_size=4"),
    "hybrid": ("strategy=hybrid", "strategy.tensor=2", "strategy.stages=1", "hardware.workers=2"),
    "tensor": ("strategy=tensor",),
    "offload": ("strategy=offload", "hardware.workers=1"),
    "domain": ("strategy=domain", "model=cnn", "model.channels=[4,6]", "model.kernel=3"),
}
DEEP = (*SMALL, *WAY, "model.hidden=[24,16,16]")


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_strategy_begins_again_with_the_factors_and_trains_as_one_worker(here, fork_server, way: str) -> None:
    base = (*SMALL, *WAY) if way == "domain" else DEEP
    weights, told = trained(*base, *WAYS[way], name="laid-out")
    check_account(told)
    model = WAYS[way][1:] if way == "domain" else ()
    alone, _ = trained(*base, *model, "strategy=single", "hardware.workers=1", name="alone")
    assert distance(weights, alone) < 1e-6


MODES = {
    "local_sgd": ("sync=local_sgd", "sync.period=2"),
    "diloco": ("sync=diloco", "sync.period=2"),
    "easgd": ("sync=easgd", "sync.period=2"),
    "gossip": ("sync=gossip",),
    "push_sum": ("sync=push_sum",),
    "noloco": ("sync=noloco", "sync.period=2"),
    "sparta": ("sync=sparta",),
    "streaming_diloco": ("sync=streaming_diloco",),
    "topk": ("compress=topk",),
    "powersgd": ("compress=powersgd",),
    "shards": ("sync.shard=gradients",),
    "median": ("aggregate=median",),
    "adamw": ("optimizer=adamw", "clip=norm", "schedule=cosine"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", MODES)
def test_what_every_mode_sends_and_holds_is_what_was_planned(here, way: str) -> None:
    steps = ("steps=8", "adapt.warm_up=4")
    made, told = trained(*DEEP, *steps, *MODES[way], "hardware=virtual", "hardware.workers=4", name="made")
    check_account(told)
    again, _ = trained(*DEEP, *steps, *MODES[way], "hardware=virtual", "hardware.workers=4", name="again")
    assert identical(made, again)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync=bsp", "sync=local_sgd", "sync=gossip"])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_run_that_is_resumed_before_at_or_after_the_change_is_the_same_bits(here, fork_server, mode, kept) -> None:
    """At step 2 the checkpoint has the model whole: its last step was one of the warm-up."""
    two = (*ON_MLP, "hardware.workers=2", mode, "compress=topk" if mode == "sync=bsp" else "compress=none")
    whole, _ = trained(*two, name="whole")
    trained(*two, "checkpoint.every_steps=1", "checkpoint.keep=5", name="kept")
    resumed, told = trained(resume=f"kept@step-{kept:08d}")
    assert identical(resumed, whole) and told["resumed_at"] == kept
    if mode == "sync=bsp":  # the others have rounds, of which so few steps have no whole number
        check_account(told)


@pytest.mark.dist
@pytest.mark.slow
def test_a_checkpoint_says_which_model_it_has_and_the_end_is_one_that_any_run_takes(here, fork_server) -> None:
    from paceline.engine.base.checkpoint import read_manifest

    trained(*ON_MLP, "hardware.workers=2", "checkpoint.every_steps=1", "checkpoint.keep=5", name="kept")
    phases = [read_manifest(Path(f"runs/kept/checkpoints/step-{step:08d}")).phase for step in (1, 2, 3, 5)]
    assert phases == [0, 0, 1, 1]
    with pytest.raises(Exception, match=r"has \[16, 12\]|has nothing|has \[") as caught:
        prepare([*SMALL, *WAY, "model.hidden=[16,12]", "weights=runs/kept/checkpoints/step-00000005"]).plan()
    assert getattr(caught.value, "exit_code", 0) == 2
    still = ("adapt=none", "optimizer.lr=1e-30", "steps=1", "weights=runs/kept/model.safetensors")
    plain, _ = trained(*SMALL, "model.hidden=[16,12]", *still, name="plain")
    assert identical(plain, load_file("runs/kept/model.safetensors"))
