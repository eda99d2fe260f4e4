"""strategy=torch_zero_optimizer: torch's ZeroRedundancyOptimizer, against plain DDP and the whole optimizer."""

from functools import partial

import pytest
import safetensors.torch
import torch
from oracles import CLASSES, FEATURES, Case, Plan, adam, identical, momentum, train, weights_of
from torch import nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.strategies.core.state import to_bytes
from paceline.strategies.external.zero_redundancy import shares_of
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.torch_ddp import TorchDDP
from paceline.testing.fabrics import FABRICS

SIZES = [[3, 3, 2], [4, 2, 2], [1, 0, 3], [2, 2, 2]]
EVERYWHERE = [
    "tracking=none",
    "optimizer=adam",
    "hardware.threads=1",
    "model.hidden=[18,13]",
]  # 1,557 parameters: three workers sum whole bytes
adagrad = partial(torch.optim.Adagrad, lr=0.05)

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]
slow = pytest.mark.slow


def one_layer() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES).double()


def frozen_in_the_middle() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, 9), nn.Linear(9, 8), nn.Linear(8, CLASSES)).double()
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return model


def trained(case: Case, zero: bool, **more):
    return FABRICS["process"](3, train, Plan(TorchDDP(zero_optimizer=zero), BSP(), case, **more))


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"optimizer": adam},
        pytest.param({"optimizer": momentum}, marks=slow),
        pytest.param({"optimizer": adagrad}, marks=slow),  # keeps state from the start
        pytest.param({"model": one_layer, "optimizer": adam}, marks=slow),  # two tensors for three workers
    ],
)
def test_weights_and_the_saved_state_are_those_of_plain_ddp_bit_for_bit(how):
    case = Case(SIZES, **how)
    plain, shared = trained(case, zero=False), trained(case, zero=True)
    for one, other in zip(plain, shared, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"], other["trajectory"], strict=True))
    one, other = plain[0]["state"]["optimizer"], shared[0]["state"]["optimizer"]
    assert one["state"].keys() == other["state"].keys() != set()
    assert all(identical(one["state"][i], other["state"][i]) for i in one["state"])
    assert one["param_groups"] == other["param_groups"]
    assert [shared[i]["state"] for i in (1, 2)] == [{}, {}]


@pytest.mark.slow
def test_tensors_are_broadcast_once_a_step_beside_the_gradients():
    """Of three workers the owner of a tensor sends it to two, in gloo's tree: twice all bytes, from somebody."""
    results = trained(Case(SIZES), zero=True)
    size = sum(w.numel() * w.element_size() for w in weights_of(Case(SIZES).start()).values())
    assert sum(each["ledger"]["broadcast"] for each in results) == len(SIZES) * 2 * size
    assert all(each["ledger"]["all_reduce"] == round(len(SIZES) * 4 / 3 * size) for each in results)


@slow
def test_a_frozen_tensor_has_no_owner_and_is_not_sent():
    case = Case(SIZES, model=frozen_in_the_middle)
    results = FABRICS["process"](3, train_unfrozen, Plan(TorchDDP(zero_optimizer=True), BSP(), case))
    trains = sum(p.numel() * p.element_size() for p in case.start().parameters() if p.requires_grad)
    assert sum(each["ledger"]["broadcast"] for each in results) == len(SIZES) * 2 * trains
    assert identical(results[0]["weights"], results[2]["weights"])


def train_unfrozen(comm, plan):
    """As the engine does: a sync mode is given what is trained, the optimizer all."""
    own = plan.strategy.own_sync()
    prepare = own.prepare
    own.prepare = lambda parameters, *rest: prepare({n: p for n, p in parameters.items() if p.requires_grad}, *rest)
    plan.strategy.own_sync = lambda: own
    return train(comm, plan)


@slow
def test_state_that_plain_ddp_saved_is_gone_on_from():
    whole = Case(SIZES, optimizer=adam)
    halfway = trained(Case(SIZES[:2], optimizer=adam), zero=False)[0]
    saved = [to_bytes({"weights": halfway["weights"], "sync": halfway["state"]})]
    straight, resumed = trained(whole, zero=False), trained(whole, zero=True, state=saved, start=2)
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("muon", marks=slow)])
@pytest.mark.slow
def test_a_worker_holds_and_sends_what_is_stated(fork_server, tmp_path, optimizer):
    overrides = [
        *EVERYWHERE,
        f"optimizer={optimizer}",
        "strategy=torch_zero_optimizer",
        "hardware.workers=3",
        "steps=4",
    ]
    summary = engine.run(overrides, root=tmp_path, quiet=True).summary
    stated, measured = summary["predicted"]["memory"], summary["memory"]
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"], rel=1e-12)
    assert measured["optimizer"] == pytest.approx(stated["optimizer"], rel=0.05)
    for kind in ("parameters", "gradients", "buffers", "activations"):
        assert measured[kind] == stated[kind], kind


@slow
def test_a_resumed_run_equals_the_uninterrupted_one(fork_server, tmp_path):
    def run(*overrides, **how):
        result = engine.run(list(overrides), root=tmp_path, quiet=True, **how)
        return safetensors.torch.load_file(result.path / "model.safetensors")

    # without find_unused torch's DDP sums in another order after the first step of a process
    how = [*EVERYWHERE, "strategy=torch_zero_optimizer", "strategy.find_unused=true", "hardware.workers=3"]
    straight = run(*how, "steps=8", "checkpoint.every_steps=5")
    run(*how, "steps=5", "checkpoint.every_steps=5", name="first")
    assert identical(run("steps=8", resume="first"), straight)


def test_the_shares_are_those_of_the_greedy_order():
    """Tensors of 9, 4, 3 and 2 entries over two workers: 9, and 4 + 3 + 2."""

    def shares(*sizes: int, workers: int = 2) -> list[list[int]]:
        return [[len(each) for each in share] for share in shares_of([torch.empty(n) for n in sizes], workers)]

    assert shares(3, 9, 2, 4) == [[9], [4, 3, 2]]
    assert shares(3, 9, 2, 4, workers=1) == [[9, 4, 3, 2]]
    assert shares(3, 9, 2, 4, 8) == [[9, 3, 2], [8, 4]]  # the third goes where fewer are


def test_parameters_of_two_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"zero_optimizer=true.*torch.float32, torch.float64.*sync.shard=optimizer"):
        TorchDDP(zero_optimizer=True).split(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
